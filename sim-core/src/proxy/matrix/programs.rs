//! Clients whose Services are entries of eBPF maps: sockets are translated where they connect, and
//! packets from outside where they come in.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netfilter_model::ebpf::{
    Around, Connected, DropReason, Identity, Maps, Node, Settings, Socket, Verdict as Passed,
};
use netfilter_model::network::{Network, NodeId, Sight};
use netfilter_model::packet::{L4, Packet, TcpFlags};
use netfilter_model::tuple::Protocol;

use super::probe::{CLIENT_PORT, Seen, Visit};
use super::{Client, Source, Verdict};

impl Visit<'_> {
    /// Tries once; every draw is `number`.
    pub(super) fn run_by_maps(
        &self,
        network: &mut Network,
        maps: &BTreeMap<NodeId, Maps>,
        number: u64,
    ) -> Seen {
        let Some(port) = self.port else {
            return self.run(network);
        };
        let at = match self.who {
            Client::External => return self.come_in(network, maps, port, number),
            Client::Pod | Client::Node => Some(self.world.node.as_str()),
            Client::OtherPod => self.world.other.as_deref(),
            Client::Itself => self.world.node_of(self.from),
        };
        let at = at.and_then(|name| self.world.address_of(name));
        let Some((id, address, maps)) = at.and_then(|(id, ip)| Some((id, ip, maps.get(&id)?)))
        else {
            return self.run(network);
        };
        let socket = Socket {
            // A datagram's place is its socket's number, which is anybody's.
            cookie: number,
            namespace: u64::from(self.client.0),
            on_host: self.who == Client::Node,
            protocol: self.part.port.name.protocol,
        };
        let identities = |of: IpAddr| self.identity(id, of);
        let mut draws = |_| number;
        let mut around = Around {
            now: network.now(),
            view: maps,
            identities: &identities,
            node: address,
            draws: &mut draws,
        };
        match Node::new(Settings::default()).connect(&mut around, &socket, (self.to, port)) {
            Connected::Direct => self.run(network),
            Connected::NoBackend => Seen {
                verdict: Verdict::HostUnreachable,
                endpoint: None,
                source: None,
                why: "connect fails: the map has no backend for it".to_owned(),
            },
            Connected::Backend { address: to, port, .. } => {
                // The socket has no address yet: it gets that of the way to the backend.
                let from = if self.from.is_loopback() { address } else { self.from };
                let seen = Visit { to, port: Some(port), from, ..*self }.run(network);
                let source = seen.source.map(|source| Source {
                    of: self.world.whose(source.addr, self.from),
                    ..source
                });
                Seen { source, ..seen }
            }
        }
    }

    /// A packet that comes in by a node's device is for a frontend.
    fn come_in(
        &self,
        network: &mut Network,
        maps: &BTreeMap<NodeId, Maps>,
        port: u16,
        number: u64,
    ) -> Seen {
        let (untranslated, sights) = self.run_seen(network);
        let arrival = sights.iter().find_map(|sight| match sight {
            Sight::Arrival { node, packet, .. }
                if Network::answered_by(packet.id).is_none() && packet.tuple.dst() == self.to =>
            {
                Some((*node, maps.get(node)?, *packet))
            }
            _ => None,
        });
        let Some((id, maps, packet)) = arrival else {
            return untranslated;
        };
        let Some(own) = self.world.nodes().find(|(_, node)| *node == id) else {
            return untranslated;
        };
        let Some((_, address)) = self.world.address_of(own.0) else {
            return untranslated;
        };
        let identities = |of: IpAddr| self.identity(id, of);
        let mut draws = |_| number;
        let mut around = Around {
            now: network.now(),
            view: maps,
            identities: &identities,
            node: address,
            draws: &mut draws,
        };
        let mut programs = Node::new(Settings::default());
        let passage = match programs.from_netdev(&mut around, packet) {
            Passed::Pass(passage) => passage,
            Passed::Drop { reason, .. } => return self.dropped(reason, own.0),
        };
        let Some(chosen) = passage.chosen else {
            return untranslated;
        };
        let endpoint = (chosen.address, chosen.port);
        let addr = passage.packet.tuple.src();
        let source = Source { addr, of: self.world.whose(addr, self.from) };
        let seen =
            |verdict, why| Seen { verdict, endpoint: Some(endpoint), source: Some(source), why };
        let protocol = self.part.port.name.protocol;
        let home = self.world.home_of(chosen.address);
        let listens =
            home.is_some_and(|id| self.world.servers.contains(&(id, protocol, chosen.port)));
        if !listens {
            return seen(Verdict::Refused, "nothing listens there".to_owned());
        }
        let mut into = passage.packet;
        let is_pod = !passage.forwarded && home != Some(id);
        if is_pod && let Passed::Pass(passage) = programs.to_container(&mut around, into) {
            into = passage.packet;
        }
        let l4 = match protocol {
            Protocol::UDP => L4::Udp,
            _ => L4::Tcp { flags: TcpFlags::SYN_ACK, segment: None },
        };
        let mut answer = Packet::new(2, into.tuple.reply(), l4, into.len);
        if passage.forwarded {
            if let Passed::Pass(passage) = programs.from_netdev(&mut around, answer) {
                answer = passage.packet;
            }
        } else {
            if is_pod && let Passed::Pass(passage) = programs.from_container(&mut around, answer) {
                answer = passage.packet;
            }
            if let Passed::Pass(passage) = programs.to_netdev(&mut around, answer) {
                answer = passage.packet;
            }
        }
        let tuple = answer.tuple;
        let reaches = (tuple.dst(), tuple.dst_part) == (self.from, CLIENT_PORT);
        if reaches && (tuple.src(), tuple.src_part) == (self.to, port) {
            return seen(Verdict::Ok, String::new());
        }
        let why = format!("the answer comes from {}, which was not asked", tuple.src());
        seen(Verdict::Timeout, why)
    }

    fn dropped(&self, reason: DropReason, node: &str) -> Seen {
        let (verdict, why) = match reason {
            DropReason::NoService => (Verdict::Refused, "the map has no backend for it"),
            DropReason::IsClusterIp => (Verdict::Timeout, "a ClusterIP, from outside"),
            DropReason::NotInSourceRange => (Verdict::Timeout, "the source may not"),
            DropReason::NoMapping => (Verdict::Timeout, "no port is left for it"),
        };
        let why = format!("dropped by the programs on {node}: {why}");
        Seen { verdict, endpoint: None, source: None, why }
    }

    /// Returns whose an address is to a node.
    fn identity(&self, node: NodeId, of: IpAddr) -> Identity {
        let mut nodes = self.world.nodes();
        let has = |id: NodeId| self.world.network.node(id).host.is_local(of);
        match nodes.find(|(_, id)| has(*id)) {
            Some((_, id)) if id == node => return Identity::Host,
            Some(_) => return Identity::RemoteNode,
            None => {}
        }
        let home = self.world.node_of(of).and_then(|name| self.world.address_of(name));
        match home {
            Some((id, _)) if id == node => Identity::LocalPod,
            Some(_) => Identity::RemotePod,
            None => Identity::World,
        }
    }
}
