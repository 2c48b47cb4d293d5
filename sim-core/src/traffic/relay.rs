//! A process on the client's node between client and server, as kube-proxy's userspace mode is:
//! it accepts the client's connection, dials an endpoint, and copies both ways.
//!
//! The process decides when to dial and when to give up; which endpoint it dials is the world's to
//! say ([`Outlet::dials`], [`Traffic::dial`]).
//!
//! Kubernetes: pkg/proxy/userspace/proxysocket.go, removed with 1.26.

use std::net::IpAddr;
use std::time::Duration;

use netfilter_model::packet::{L4, Packet, TcpFlags};
use netfilter_model::tuple::Tuple;

use super::client::{REQUEST_LEN, RESPONSE_LEN, segment};
use super::connection::{Connection, Key};
use super::{Event, Outlet, Sender, Traffic};
use crate::engine::queue::Schedule;
use crate::ids::NodeId;

/// How long each dial may take; after the last the process gives up.
///
/// Kubernetes: pkg/proxy/userspace/proxysocket.go, EndpointDialTimeouts.
const DIAL_TIMEOUTS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// When a SYN of a dial is sent again: within the longest dial it is once.
const SYN_AGAIN: Duration = Duration::from_secs(1);

/// The process's part in one connection.
#[derive(Clone, Debug)]
pub(super) struct Relay {
    node: NodeId,
    /// From the client to the process, as the process sees it.
    front: Tuple,
    /// From the process to the endpoint that it dials or talks to.
    back: Option<Tuple>,
    state: State,
    /// Dials so far.
    dials: usize,
    /// Whether the client's request has come and has not been passed on.
    holds_request: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// SYN-ACK sent to the client.
    SynReceived,
    /// Accepted; the endpoint has not.
    Dialing,
    /// Both are connected.
    Joined,
    /// FIN sent to both.
    Closing,
    /// Over.
    Closed,
}

impl Relay {
    /// Returns whether the process is done with the connection.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Closed
    }
}

impl Traffic {
    /// Handles a packet that reached the process on `node`; `accepts` tells whether it listens at
    /// the packet's port.
    pub fn on_relay_packet(
        &mut self,
        node: NodeId,
        packet: &Packet,
        accepts: bool,
        out: &mut Outlet,
    ) {
        let key = Key::from_packet_id(packet.id);
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let flags = match packet.l4 {
            L4::Tcp { flags, .. } => flags,
            L4::IcmpError { quote, .. } => {
                let dialed = connection.relay.as_ref().is_some_and(|relay| {
                    relay.state == State::Dialing && relay.back == Some(quote)
                });
                if dialed {
                    dial_next(key, connection, out);
                }
                return;
            }
            L4::Udp | L4::IcmpEcho | L4::Other => return,
        };
        let relay = connection.relay.as_deref();
        let front = relay.is_some_and(|relay| relay.front == packet.tuple);
        let back = relay.and_then(|relay| relay.back).map(|back| back.reply());
        if back == Some(packet.tuple) {
            on_back(key, connection, flags, out);
        } else if front && !flags.contains(TcpFlags::SYN) {
            on_front(key, connection, flags, out);
        } else if accepts && flags == TcpFlags::SYN {
            if !front {
                connection.met = None;
                connection.relay = Some(Box::new(Relay {
                    node,
                    front: packet.tuple,
                    back: None,
                    state: State::SynReceived,
                    dials: 0,
                    holds_request: false,
                }));
            }
            let answer = segment(key, packet.tuple.reply(), TcpFlags::SYN_ACK);
            out.packets.push((Sender::Node(node), answer));
        } else if !flags.contains(TcpFlags::RST) {
            let answer = segment(key, packet.tuple.reply(), TcpFlags::RST);
            out.packets.push((Sender::Node(node), answer));
        }
    }

    /// Dials an endpoint: sends a SYN from the process, and sets the timer of this dial.
    pub fn dial(
        &mut self,
        key: Key,
        to: Tuple,
        schedule: &mut impl Schedule<Event>,
        out: &mut Outlet,
    ) {
        let Some(relay) = self.relay_mut(key) else {
            return;
        };
        relay.back = Some(to);
        let timeout = DIAL_TIMEOUTS[relay.dials.min(DIAL_TIMEOUTS.len() - 1)];
        relay.dials += 1;
        out.packets.push((Sender::Node(relay.node), segment(key, to, TcpFlags::SYN)));
        let dial = relay.dials as u32;
        schedule.after(timeout, Event::Dial(key, dial));
        if timeout > SYN_AGAIN {
            schedule.after(SYN_AGAIN, Event::DialAgain(key, dial));
        }
    }

    /// Tells the process that there is no endpoint to dial: it closes the client's connection.
    pub fn no_endpoint(&mut self, key: Key, out: &mut Outlet) {
        if let Some(connection) = self.connections.get_mut(key) {
            give_up(key, connection, out);
        }
    }

    /// Handles the end of the time for dial number `dial` of a connection.
    pub fn on_dial_timeout(&mut self, key: Key, dial: u32, out: &mut Outlet) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let waits = |relay: &Relay| relay.state == State::Dialing && relay.dials == dial as usize;
        if connection.relay.as_deref().is_some_and(waits) {
            dial_next(key, connection, out);
        }
    }

    /// Sends the SYN of dial number `dial` again, if it is still without an answer.
    pub fn on_dial_again(&mut self, key: Key, dial: u32, out: &mut Outlet) {
        if let Some(relay) = self.relay_mut(key)
            && relay.state == State::Dialing
            && relay.dials == dial as usize
            && let Some(back) = relay.back
        {
            out.packets.push((Sender::Node(relay.node), segment(key, back, TcpFlags::SYN)));
        }
    }

    /// Returns the node on which a process relays a connection, the address that the process knows
    /// the client by, and how often it has dialed.
    pub fn relayed(&self, key: Key) -> Option<(NodeId, IpAddr, usize)> {
        let relay = self.connections.get(key)?.relay.as_ref()?;
        Some((relay.node, relay.front.src(), relay.dials))
    }

    /// Takes a source port for a process on `node`.
    pub fn relay_port(&mut self, node: NodeId) -> u16 {
        use crate::ids::Id as _;
        if self.relay_ports.len() <= node.index() {
            self.relay_ports.resize(node.index() + 1, *super::PORTS.start());
        }
        let port = self.relay_ports[node.index()];
        self.relay_ports[node.index()] =
            if port == *super::PORTS.end() { *super::PORTS.start() } else { port + 1 };
        port
    }

    fn relay_mut(&mut self, key: Key) -> Option<&mut Relay> {
        self.connections.get_mut(key)?.relay.as_deref_mut()
    }
}

/// Handles a segment of the client.
fn on_front(key: Key, connection: &mut Connection, flags: TcpFlags, out: &mut Outlet) {
    let Some(relay) = connection.relay.as_deref_mut() else {
        return;
    };
    let node = Sender::Node(relay.node);
    if flags.contains(TcpFlags::RST) {
        // Reading fails, and the process closes both.
        if relay.state == State::Joined
            && let Some(back) = relay.back
        {
            out.packets.push((node, segment(key, back, TcpFlags::FIN | TcpFlags::ACK)));
            relay.state = State::Closing;
        } else if relay.state != State::Closing {
            relay.state = State::Closed;
            out.over.push(key);
        }
        return;
    }
    if flags.contains(TcpFlags::FIN) {
        let fin = TcpFlags::FIN | TcpFlags::ACK;
        match relay.state {
            State::Closing => {
                out.packets.push((node, segment(key, relay.front.reply(), TcpFlags::ACK)));
            }
            State::Closed => {}
            _ => {
                out.packets.push((node, segment(key, relay.front.reply(), fin)));
                match relay.back.filter(|_| relay.state == State::Joined) {
                    Some(back) => {
                        out.packets.push((node, segment(key, back, fin)));
                        relay.state = State::Closing;
                    }
                    None => {
                        relay.state = State::Closed;
                        out.over.push(key);
                    }
                }
            }
        }
        return;
    }
    if relay.state == State::SynReceived {
        relay.state = State::Dialing;
        out.dials.push(key);
    }
    if flags.contains(TcpFlags::PSH) {
        relay.holds_request = true;
        pass_on(key, relay, out);
    }
}

/// Handles a segment of the endpoint that is dialed or talked to.
fn on_back(key: Key, connection: &mut Connection, flags: TcpFlags, out: &mut Outlet) {
    let Some(relay) = connection.relay.as_deref_mut() else {
        return;
    };
    let (node, front) = (Sender::Node(relay.node), relay.front.reply());
    let Some(back) = relay.back else {
        return;
    };
    if flags.contains(TcpFlags::RST) {
        match relay.state {
            State::Dialing => dial_next(key, connection, out),
            State::Joined => {
                // All that was read is written; the client is told by the end of the stream.
                out.packets.push((node, segment(key, front, TcpFlags::FIN | TcpFlags::ACK)));
                relay.state = State::Closed;
                out.over.push(key);
            }
            State::Closing => {
                relay.state = State::Closed;
                out.over.push(key);
            }
            State::SynReceived | State::Closed => {}
        }
    } else if flags.contains(TcpFlags::SYN_ACK) {
        if relay.state == State::Dialing {
            relay.state = State::Joined;
            out.packets.push((node, segment(key, back, TcpFlags::ACK)));
            pass_on(key, relay, out);
        } else if relay.state != State::Joined {
            out.packets.push((node, segment(key, back, TcpFlags::RST)));
        }
    } else if flags.contains(TcpFlags::FIN) {
        out.packets.push((node, segment(key, back, TcpFlags::ACK)));
        if relay.state == State::Joined {
            out.packets.push((node, segment(key, front, TcpFlags::FIN | TcpFlags::ACK)));
        }
        if relay.state != State::Closed {
            relay.state = State::Closed;
            out.over.push(key);
        }
    } else if flags.contains(TcpFlags::PSH) && relay.state == State::Joined {
        let response = segment(key, front, TcpFlags::PSH | TcpFlags::ACK);
        out.packets.push((node, Packet { len: RESPONSE_LEN, ..response }));
    }
}

/// Passes the client's request on, if there is one and somebody to pass it to.
fn pass_on(key: Key, relay: &mut Relay, out: &mut Outlet) {
    if relay.holds_request
        && relay.state == State::Joined
        && let Some(back) = relay.back
    {
        relay.holds_request = false;
        let request = segment(key, back, TcpFlags::PSH | TcpFlags::ACK);
        out.packets.push((Sender::Node(relay.node), Packet { len: REQUEST_LEN, ..request }));
    }
}

/// Asks for another endpoint, or gives up after the last dial.
fn dial_next(key: Key, connection: &mut Connection, out: &mut Outlet) {
    let dials = connection.relay.as_ref().map_or(0, |relay| relay.dials);
    if dials < DIAL_TIMEOUTS.len() {
        out.dials.push(key);
    } else {
        give_up(key, connection, out);
    }
}

/// Closes the client's connection without an answer: a reset if its request was never read.
fn give_up(key: Key, connection: &mut Connection, out: &mut Outlet) {
    let Some(relay) = connection.relay.as_deref_mut() else {
        return;
    };
    let flags = if relay.holds_request { TcpFlags::RST } else { TcpFlags::FIN };
    let end = segment(key, relay.front.reply(), flags | TcpFlags::ACK);
    out.packets.push((Sender::Node(relay.node), end));
    relay.state = State::Closed;
    out.over.push(key);
}
