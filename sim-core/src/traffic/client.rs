//! The client's side: one connection per attempt, a timeout, retries on a new connection.

use netfilter_model::packet::{IcmpError, L4, Packet, TcpFlags};
use netfilter_model::tuple::{Protocol, Tuple};

use super::connection::{Begin, ClientState, Connection, Key};
use super::tcp::{last_timeout, syn_timeout};
use super::{ClientPlace, Event, Met, Outcome, Outlet, Sender, Traffic, purpose};
use crate::engine::queue::Schedule;
use crate::ids::{ClientId, Id, PodId};
use crate::record::{Cause, Symptom};
use crate::time::SimTime;

/// Bytes of a request and of a response, headers included.
pub(super) const REQUEST_LEN: u32 = 240;
pub(super) const RESPONSE_LEN: u32 = 1240;

impl Traffic {
    /// Schedules every group's first request.
    pub fn start(&mut self, schedule: &mut impl Schedule<Event>) {
        for client in self.groups.ids() {
            let group = &mut self.groups[client];
            group.arrivals.block(0, &mut group.times);
            self.schedule_arrival(client, schedule);
        }
    }

    /// Schedules the next request, or a look into the next block if this one is empty.
    fn schedule_arrival(&mut self, client: ClientId, schedule: &mut impl Schedule<Event>) {
        let group = &mut self.groups[client];
        let time = group.times.get(group.next).copied();
        let time = time.unwrap_or_else(|| group.arrivals.start(group.block + 1));
        schedule.at(time, Event::Arrival(client));
    }

    /// Handles an arrival: begins the request that is due, and schedules the next. Returns the
    /// connection that began, for [`Traffic::begin`].
    ///
    /// `place` tells where a client Pod is; one that is nowhere sends nothing.
    pub fn on_arrival(
        &mut self,
        id: ClientId,
        schedule: &mut impl Schedule<Event>,
        place: impl Fn(PodId) -> Option<ClientPlace>,
    ) -> Option<Key> {
        if !self.sending {
            return None;
        }
        let group = &mut self.groups[id];
        let due = group.next < group.times.len();
        let key = due.then_some(()).and_then(|()| {
            let request = super::ArrivalProcess::request(group.block, group.next);
            group.next += 1;
            let draws = group.requests.get(request);
            let pod = group.pod(draws.get(purpose::POD));
            let client = place(PodId::from_index(group.first_pod.index() + pod))?;
            self.requests += 1;
            self.open += 1;
            Some(self.connections.insert(Begin {
                group: id,
                request,
                attempt: 0,
                client,
                tuple: tuple(client, group.next_port(pod), group.target),
                node_draw: draws.get(purpose::CLIENT_NODE),
                service_draw: draws.get(purpose::SERVICE),
            }))
        });
        let group = &mut self.groups[id];
        if group.next == group.times.len() {
            group.block += 1;
            group.next = 0;
            group.arrivals.block(group.block, &mut group.times);
        }
        self.schedule_arrival(id, schedule);
        key
    }

    /// Sends the first SYN of an attempt.
    pub fn begin(&mut self, key: Key, schedule: &mut impl Schedule<Event>, out: &mut Outlet) {
        let connection = self.connections.get_mut(key).expect("an attempt begins once");
        connection.state = ClientState::SynSent;
        connection.sent = schedule.now();
        connection.deadline = schedule.now() + self.groups[connection.group].spec.timeout;
        send_syn(key, connection, schedule, out);
    }

    /// Has an attempt's packets go to an address other than the Service's, and returns the tuple
    /// that they get.
    pub fn translate(&mut self, key: Key, to: (std::net::Ipv4Addr, u16)) -> Option<Tuple> {
        let connection = self.connections.get_mut(key)?;
        let port = connection.tuple.src_part;
        connection.tuple = tuple(connection.client, port, to);
        Some(connection.tuple)
    }

    /// Ends an attempt whose socket could not connect, for want of an endpoint.
    pub fn fail_to_connect(
        &mut self,
        key: Key,
        schedule: &mut impl Schedule<Event>,
        out: &mut Outlet,
    ) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        connection.sent = schedule.now();
        connection.deadline = schedule.now();
        self.lose(key, Symptom::HostUnreachable, Some(Cause::Rejected), schedule, out);
    }

    /// Handles a connection's timer: the client's timeout, or a SYN that is sent again.
    pub fn on_timer(&mut self, key: Key, schedule: &mut impl Schedule<Event>, out: &mut Outlet) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        match connection.state {
            ClientState::SynSent if schedule.now() < connection.deadline => {
                if syn_timeout(connection.syns).is_some() {
                    send_syn(key, connection, schedule, out);
                } else {
                    self.lose(key, Symptom::Timeout, None, schedule, out);
                }
            }
            ClientState::Established if schedule.now() < connection.deadline => {
                schedule.at(connection.deadline, Event::Timer(key));
            }
            ClientState::SynSent => self.lose(key, Symptom::Timeout, None, schedule, out),
            ClientState::Established => {
                // The client closes a connection with an answer outstanding.
                let rst = segment(key, connection.tuple, TcpFlags::RST | TcpFlags::ACK);
                out.packets.push((Sender::Pod(connection.client.pod), rst));
                self.lose(key, Symptom::Timeout, None, schedule, out);
            }
            ClientState::Waiting | ClientState::FinWait | ClientState::Closed => {}
        }
    }

    /// Handles a packet that reached the client's Pod.
    pub(super) fn on_client_packet(
        &mut self,
        key: Key,
        packet: &Packet,
        schedule: &mut impl Schedule<Event>,
        out: &mut Outlet,
    ) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let pod = connection.client.pod;
        let flags = match packet.l4 {
            L4::Tcp { flags, .. } => flags,
            L4::IcmpError { kind, quote } => {
                // Kernel: tcp_ipv4.c, tcp_v4_err. A soft error to an established connection.
                if connection.state == ClientState::SynSent && quote == connection.tuple {
                    self.on_unreachable(key, kind, schedule, out);
                }
                return;
            }
            L4::Udp | L4::IcmpEcho | L4::Other => return,
        };
        let mut send = |flags, len| {
            out.packets
                .push((Sender::Pod(pod), Packet { len, ..segment(key, connection.tuple, flags) }));
        };
        let acknowledge = TcpFlags::ACK;
        match connection.state {
            ClientState::Closed if flags.contains(TcpFlags::RST) => {}
            ClientState::Closed => send(TcpFlags::RST, 40),
            ClientState::SynSent if flags.contains(TcpFlags::RST) => {
                self.lose(key, Symptom::Refused, Some(Cause::Refused), schedule, out);
            }
            ClientState::SynSent if flags.contains(TcpFlags::SYN_ACK) => {
                connection.state = ClientState::Established;
                send(acknowledge, 40);
                send(acknowledge | TcpFlags::PSH, REQUEST_LEN);
            }
            ClientState::Established if flags.contains(TcpFlags::RST) => {
                self.lose(key, Symptom::Reset, Some(Cause::Reset), schedule, out);
            }
            ClientState::Established
                if flags.contains(TcpFlags::FIN) && !flags.contains(TcpFlags::PSH) =>
            {
                // The stream ends before the response.
                send(acknowledge | TcpFlags::FIN, 40);
                self.lose(key, Symptom::Reset, Some(Cause::Reset), schedule, out);
            }
            ClientState::Established if flags.contains(TcpFlags::PSH) => {
                connection.state = ClientState::FinWait;
                send(acknowledge | TcpFlags::FIN, 40);
                self.requests_answered += 1;
                self.open -= 1;
                out.ended.push((key, Outcome::Answered));
            }
            ClientState::FinWait if flags.contains(TcpFlags::FIN) => {
                send(acknowledge, 40);
                connection.state = ClientState::Closed;
                out.over.push(key);
            }
            ClientState::FinWait if flags.contains(TcpFlags::RST) => {
                connection.state = ClientState::Closed;
                out.over.push(key);
            }
            _ => {}
        }
    }

    fn on_unreachable(
        &mut self,
        key: Key,
        kind: IcmpError,
        schedule: &mut impl Schedule<Event>,
        out: &mut Outlet,
    ) {
        let met = self.connections.get(key).and_then(|connection| connection.met);
        // A REJECT rule was noted when the packet met it; else a namespace or a router answered.
        let rejected = met.is_some_and(|met| met.cause == Cause::Rejected);
        let (cause, symptom) = match kind {
            IcmpError::PortUnreachable | IcmpError::ProtocolUnreachable => {
                (Cause::Refused, Symptom::Refused)
            }
            _ => (Cause::Unreachable, Symptom::HostUnreachable),
        };
        let cause = if rejected { Cause::Rejected } else { cause };
        self.lose(key, symptom, Some(cause), schedule, out);
    }

    /// Ends an attempt without an answer, and begins another if the request has one left.
    fn lose(
        &mut self,
        key: Key,
        symptom: Symptom,
        cause: Option<Cause>,
        schedule: &mut impl Schedule<Event>,
        out: &mut Outlet,
    ) {
        let connection = self.connections.get_mut(key).expect("the attempt is open");
        connection.state = ClientState::Closed;
        let met = connection.met.map(|met| met.cause);
        // Without a server's side, no SYN has reached anybody yet.
        let silent = if connection.server_pod.is_some() { Cause::Server } else { Cause::Link };
        let cause = cause.or(met).unwrap_or(silent);
        out.ended.push((key, Outcome::Lost(cause, symptom)));
        out.over.push(key);
        let (group_id, request, attempt, client) =
            (connection.group, connection.request, connection.attempt + 1, connection.client);
        let group = &mut self.groups[group_id];
        if attempt > group.spec.retries {
            self.requests_lost += 1;
            self.open -= 1;
            return;
        }
        let draws = group.stream.attempt(request, attempt);
        let pod = client.pod.index() - group.first_pod.index();
        let retry = self.connections.insert(Begin {
            group: group_id,
            request,
            attempt,
            client,
            tuple: tuple(client, group.next_port(pod), group.target),
            node_draw: draws.get(purpose::CLIENT_NODE),
            service_draw: draws.get(purpose::SERVICE),
        });
        schedule.after(group.spec.retry_backoff, Event::Retry(retry));
    }

    /// Counts that an attempt's SYN has come from one machine to another.
    pub fn hop(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(Key::from_packet_id(id)) {
            connection.hops += 1;
        }
    }

    /// Counts rules that an attempt's SYN has passed on one machine.
    pub fn passed(&mut self, id: u64, rules: u32) {
        if let Some(connection) = self.connections.get_mut(Key::from_packet_id(id)) {
            connection.rules += rules;
        }
    }

    /// Notes what a packet met on its way.
    pub fn met(&mut self, id: u64, met: Met) {
        if let Some(connection) = self.connections.get_mut(Key::from_packet_id(id)) {
            connection.met = Some(met);
        }
    }
}

/// Sends a SYN and sets the timer to what comes first: the next SYN or the client's timeout.
fn send_syn(
    key: Key,
    connection: &mut Connection,
    schedule: &mut impl Schedule<Event>,
    out: &mut Outlet,
) {
    connection.syns += 1;
    connection.hops = 0;
    connection.rules = 0;
    out.packets
        .push((Sender::Pod(connection.client.pod), segment(key, connection.tuple, TcpFlags::SYN)));
    let next: SimTime = schedule.now() + syn_timeout(connection.syns).unwrap_or_else(last_timeout);
    schedule.at(next.min(connection.deadline), Event::Timer(key));
}

fn tuple(client: ClientPlace, port: u16, target: (std::net::Ipv4Addr, u16)) -> Tuple {
    Tuple::v4(Protocol::TCP, client.addr, port, target.0, target.1)
}

pub(super) fn segment(key: Key, tuple: Tuple, flags: TcpFlags) -> Packet {
    Packet::tcp(key.to_packet_id(), tuple, flags)
}
