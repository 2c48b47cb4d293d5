//! The server's side: accepts while it listens, answers after its service time.

use netfilter_model::packet::{L4, Packet, TcpFlags};

use super::client::{RESPONSE_LEN, segment};
use super::connection::{Connections, Key, ServerState};
use super::{Event, Host, Met, Outlet, Sender, Traffic};
use crate::engine::queue::Schedule;
use crate::ids::{Id, PodId};
use crate::record::Cause;

/// Each server's connections.
#[derive(Debug, Default)]
pub(super) struct Servers(Vec<Vec<Key>>);

impl Servers {
    pub(super) fn of(&self, pod: PodId) -> &[Key] {
        self.0.get(pod.index()).map_or(&[], Vec::as_slice)
    }

    fn add(&mut self, pod: PodId, key: Key) -> u32 {
        if self.0.len() <= pod.index() {
            self.0.resize_with(pod.index() + 1, Vec::new);
        }
        self.0[pod.index()].push(key);
        (self.0[pod.index()].len() - 1) as u32
    }

    /// Ends the server's side of `key`.
    fn close(&mut self, key: Key, connections: &mut Connections, out: &mut Outlet) {
        let Some(connection) = connections.get_mut(key) else {
            return;
        };
        let Some(pod) = connection.server_pod else {
            return;
        };
        if matches!(connection.server, ServerState::None | ServerState::Closed) {
            return;
        }
        connection.server = ServerState::Closed;
        out.over.push(key);
        let slot = connection.server_slot;
        let list = &mut self.0[pod.index()];
        list.swap_remove(slot as usize);
        let moved = list.get(slot as usize).copied();
        if list.is_empty() {
            out.idle.push(pod);
        }
        if let Some(moved) = moved.and_then(|moved| connections.get_mut(moved)) {
            moved.server_slot = slot;
        }
    }
}

impl Traffic {
    /// Handles a packet that reached `host`, a Pod with a live network namespace.
    ///
    /// A socket is found by the packet's id and checked by its tuple: ids and tuples of live
    /// connections stand for each other. The connection stays until [`Traffic::reap`].
    pub fn on_packet(
        &mut self,
        host: Host<'_>,
        packet: &Packet,
        schedule: &mut impl Schedule<Event>,
        out: &mut Outlet,
    ) {
        let key = Key::from_packet_id(packet.id);
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let for_client = host.pod == connection.client.pod
            && (packet.is_icmp_error() || packet.tuple == connection.tuple.reply());
        if for_client {
            self.on_client_packet(key, packet, schedule, out);
        } else {
            self.on_server_packet(key, host, packet, schedule, out);
        }
    }

    fn on_server_packet(
        &mut self,
        key: Key,
        host: Host<'_>,
        packet: &Packet,
        schedule: &mut impl Schedule<Event>,
        out: &mut Outlet,
    ) {
        let L4::Tcp { flags, .. } = packet.l4 else { return };
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let ours = connection.server_pod == Some(host.pod)
            && connection.server_tuple == packet.tuple
            && !matches!(connection.server, ServerState::None | ServerState::Closed);
        let mut send = |flags, len| {
            let packet = Packet { len, ..segment(key, packet.tuple.reply(), flags) };
            out.packets.push((Sender::Pod(host.pod), packet));
        };
        if flags.contains(TcpFlags::RST) {
            if ours {
                self.servers.close(key, &mut self.connections, out);
            }
            return;
        }
        if flags.contains(TcpFlags::SYN) {
            if ours {
                send(TcpFlags::SYN_ACK, 40);
            } else if host.listening && connection.is_new_to_servers(packet.tuple) {
                connection.server = ServerState::SynReceived;
                connection.server_pod = Some(host.pod);
                connection.server_tuple = packet.tuple;
                connection.met = None;
                self.accepted += 1;
                self.hops += u64::from(connection.hops);
                self.rules += u64::from(connection.rules);
                connection.server_slot = self.servers.add(host.pod, key);
                send(TcpFlags::SYN_ACK, 40);
            } else {
                connection
                    .met
                    .get_or_insert(Met { cause: Cause::Refused, stale_for: None })
                    .cause = Cause::Refused;
                send(TcpFlags::RST | TcpFlags::ACK, 40);
            }
            return;
        }
        if !ours {
            send(TcpFlags::RST, 40);
            return;
        }
        if flags.contains(TcpFlags::FIN) {
            connection.server = ServerState::LastAck;
            send(TcpFlags::FIN | TcpFlags::ACK, 40);
        } else if flags.contains(TcpFlags::PSH) {
            connection.server = ServerState::Serving;
            let time = host.service_time.map(|law| law.sample(connection.service_draw));
            match time.filter(|time| !time.is_zero()) {
                Some(time) => schedule.after(time, Event::Served(key)),
                None => self.on_served(key, out),
            }
        } else if connection.server == ServerState::LastAck {
            self.servers.close(key, &mut self.connections, out);
        } else if connection.server == ServerState::SynReceived {
            connection.server = ServerState::Established;
        }
    }

    /// Sends the response of a connection whose request has been served.
    pub fn on_served(&mut self, key: Key, out: &mut Outlet) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if connection.server != ServerState::Serving {
            return;
        }
        connection.server = ServerState::Established;
        let response = segment(key, connection.server_tuple.reply(), TcpFlags::PSH | TcpFlags::ACK);
        let pod = connection.server_pod.expect("a served connection has a server");
        out.packets.push((Sender::Pod(pod), Packet { len: RESPONSE_LEN, ..response }));
    }

    /// Closes `pod`'s listener: connections that are not accepted yet are forgotten.
    ///
    /// Kernel: inet_connection_sock.c, inet_csk_listen_stop.
    pub fn stop_listening(&mut self, pod: PodId, out: &mut Outlet) {
        let waiting = |key: &&Key| {
            let connection = self.connections.get(**key);
            connection.is_some_and(|found| found.server == ServerState::SynReceived)
        };
        let waiting: Vec<Key> = self.servers.of(pod).iter().filter(waiting).copied().collect();
        for key in waiting {
            self.servers.close(key, &mut self.connections, out);
        }
    }

    /// Ends `pod`'s process: every connection that it holds is reset.
    pub fn reset_all(&mut self, pod: PodId, out: &mut Outlet) {
        let keys = self.servers.of(pod).to_vec();
        for key in keys {
            if let Some(connection) = self.connections.get(key) {
                let tuple = connection.server_tuple.reply();
                out.packets
                    .push((Sender::Pod(pod), segment(key, tuple, TcpFlags::RST | TcpFlags::ACK)));
            }
            self.servers.close(key, &mut self.connections, out);
        }
    }

    /// Frees a connection whose sides are both over; called once its end is accounted for.
    pub fn reap(&mut self, key: Key) {
        self.connections.reap(key);
    }
}
