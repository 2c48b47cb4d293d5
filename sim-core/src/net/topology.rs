//! Who is how far from whom: nodes on switches, switches on links.

use std::time::Duration;

use petgraph::algo::dijkstra;
use petgraph::graph::{NodeIndex, UnGraph};

use crate::ids::{Id, IdVec, NodeId};

/// The fabric between nodes: a graph whose edges are links with a one-way latency.
///
/// Every node hangs on one switch; paths between switches are the shortest ones, found once.
#[derive(Debug)]
pub struct Topology {
    graph: UnGraph<Vertex, Duration>,
    switches: Vec<NodeIndex>,
    /// The switch of each node, and the latency of the link to it.
    uplinks: IdVec<NodeId, (usize, Duration)>,
    /// Latency between switches, by index in `switches`, where there is a path.
    between: Vec<Vec<Option<Duration>>>,
}

/// What stands at the end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vertex {
    /// A switch.
    Switch,
    /// A node of the cluster.
    Node(NodeId),
}

impl Topology {
    /// Returns `nodes` nodes on one switch, each `link` away from it.
    pub fn star(nodes: u32, link: Duration) -> Topology {
        let mut graph = UnGraph::with_capacity(nodes as usize + 1, nodes as usize);
        let switch = graph.add_node(Vertex::Switch);
        for node in 0..nodes {
            let vertex = graph.add_node(Vertex::Node(NodeId::from_index(node as usize)));
            graph.add_edge(switch, vertex, link);
        }
        Topology::new(graph)
    }

    /// Returns the topology of `graph`.
    ///
    /// # Panics
    ///
    /// If a node is not on exactly one switch: a bug in what made the graph.
    pub fn new(graph: UnGraph<Vertex, Duration>) -> Topology {
        let switches: Vec<NodeIndex> =
            graph.node_indices().filter(|&vertex| graph[vertex] == Vertex::Switch).collect();
        let mut uplinks: Vec<(NodeId, usize, Duration)> = Vec::new();
        for vertex in graph.node_indices() {
            let Vertex::Node(node) = graph[vertex] else {
                continue;
            };
            let mut neighbors = graph.neighbors(vertex);
            let switch = neighbors.next().expect("a node has a link");
            assert!(neighbors.next().is_none(), "{node:?} has more than one link");
            let edge = graph.find_edge(vertex, switch).expect("neighbors share an edge");
            let index = switches.binary_search(&switch).expect("a node's neighbor is a switch");
            uplinks.push((node, index, graph[edge]));
        }
        uplinks.sort_by_key(|uplink| uplink.0);
        // Nodes are leaves: the shortest path between switches never passes through one.
        let between = switches
            .iter()
            .map(|&from| {
                let reached = if switches.len() == 1 {
                    [(from, Duration::ZERO)].into_iter().collect()
                } else {
                    dijkstra(&graph, from, None, |link| *link.weight())
                };
                switches.iter().map(|to| reached.get(to).copied()).collect()
            })
            .collect();
        let uplinks = uplinks.into_iter().map(|(_, switch, link)| (switch, link)).collect();
        Topology { graph, switches, uplinks, between }
    }

    /// Returns the one-way latency between two different nodes, if there is a path.
    pub fn latency(&self, from: NodeId, to: NodeId) -> Option<Duration> {
        let ((a, up), (b, down)) = (self.uplinks[from], self.uplinks[to]);
        Some(up + self.between[a][b]? + down)
    }

    /// Returns the greatest latency between two nodes of which one can reach the other.
    pub fn greatest_latency(&self) -> Duration {
        let uplink = self.uplinks.as_slice().iter().map(|uplink| uplink.1).max();
        let between = self.between.iter().flatten().flatten().max();
        2 * uplink.unwrap_or_default() + between.copied().unwrap_or_default()
    }

    /// Returns the graph.
    pub fn graph(&self) -> &UnGraph<Vertex, Duration> {
        &self.graph
    }

    /// Returns how many switches there are.
    pub fn switches(&self) -> usize {
        self.switches.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_of_a_star_are_two_links_apart() {
        let topology = Topology::star(3, Duration::from_micros(50));
        let [a, b] = [0, 2].map(NodeId::from_index);
        assert_eq!(topology.latency(a, b), Some(Duration::from_micros(100)));
        assert_eq!(topology.switches(), 1);
    }

    #[test]
    fn switches_are_joined_by_the_shortest_path() {
        let mut graph = UnGraph::new_undirected();
        let switches = [(); 3].map(|()| graph.add_node(Vertex::Switch));
        for node in 0..2 {
            let vertex = graph.add_node(Vertex::Node(NodeId::from_index(node)));
            graph.add_edge(vertex, switches[2 * node], Duration::from_micros(1));
        }
        graph.add_edge(switches[0], switches[2], Duration::from_micros(100));
        graph.add_edge(switches[0], switches[1], Duration::from_micros(10));
        graph.add_edge(switches[1], switches[2], Duration::from_micros(10));
        let topology = Topology::new(graph);
        let [a, b] = [0, 1].map(NodeId::from_index);
        assert_eq!(topology.latency(a, b), Some(Duration::from_micros(22)));
    }

    #[test]
    fn without_a_path_there_is_no_latency() {
        let mut graph = UnGraph::new_undirected();
        for node in 0..2 {
            let switch = graph.add_node(Vertex::Switch);
            let vertex = graph.add_node(Vertex::Node(NodeId::from_index(node)));
            graph.add_edge(vertex, switch, Duration::from_micros(1));
        }
        let [a, b] = [0, 1].map(NodeId::from_index);
        assert_eq!(Topology::new(graph).latency(a, b), None);
    }
}
