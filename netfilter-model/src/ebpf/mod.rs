//! Services in eBPF maps, as Cilium keeps them in place of kube-proxy: what the maps hold, and what
//! the programs attached to sockets and devices do with it.
//!
//! ```text
//!  connect(), sendmsg() ─► Node::connect ──► destination rewritten before a packet exists
//!  recvmsg()            ─► Node::recvmsg ──► source rewritten back
//!  Pod's device in      ─► Node::from_container    (where sockets are not translated)
//!  Pod's device out     ─► Node::to_container
//!  node's device in     ─► Node::from_netdev       (NodePort, load balancer, external IP)
//!  node's device out    ─► Node::to_netdev
//! ```
//!
//! What is configured ([`Maps`]: frontends, backends, reverse NAT) and what packets leave behind
//! ([`Node`]: connections, affinity, translated sockets) are apart, since a caller may hold many
//! versions of the former. Any view of it serves that implements [`View`].
//!
//! ```
//! use netfilter_model::ebpf::{Backend, BackendState, Frontend, FrontendKey, FrontendKind, Maps};
//! use netfilter_model::tuple::Protocol;
//!
//! let mut maps = Maps::default();
//! let address = "10.244.0.150".parse().unwrap();
//! let backend = Backend { address, port: 53, protocol: Protocol::TCP, state: BackendState::Active };
//! let id = maps.add_backend(backend);
//! let key = FrontendKey::external("10.96.0.10".parse().unwrap(), 53, Protocol::TCP);
//! maps.add_frontend(key, Frontend::new(FrontendKind::ClusterIp, vec![id]));
//! assert!(maps.list().contains("10.96.0.10:53/TCP (1)  10.244.0.150:53/TCP (1) (1)\n"));
//! ```
//!
//! Known from Cilium's source and documentation up to 1.19 (bpf/lib/lb.h, bpf/lib/conntrack.h,
//! bpf/bpf_sock.c, pkg/loadbalancer, pkg/maglev). Not modelled: direct server return, tunnels,
//! policies, L7 redirection, NAT46, local redirects, fragments, the limits of the maps.

mod affinity;
mod conntrack;
mod listing;
mod maglev;
mod maps;
mod node;
mod packet;
mod snat;
mod socket;

pub use affinity::Client;
pub use conntrack::Lifetimes;
pub use maglev::{Maglev, TABLE_SIZES};
pub use maps::{
    Backend, BackendId, BackendState, Counts, Frontend, FrontendKey, FrontendKind, Maps, Policies,
    RevNatId, Scope, View,
};
pub use node::{Algorithm, Around, Identify, Identity, Node, Settings, SocketLb};
pub use packet::{Chosen, DropReason, Passage, Verdict};
pub use socket::{Connected, Socket};

#[cfg(test)]
mod tests;
