//! What IPVS keeps between packets, and what it says about one.
// Kernel: ip_vs_core.c, ip_vs_in_hook, ip_vs_schedule, ip_vs_sched_persist, handle_response

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::schedule::{Loaded, Position};
use super::table::{Connection, Load, RealServer, Table};
use super::tcp::{ConnState, Timeouts};
use super::{Destination, Forward, Service, ServiceId, Services};
use crate::conntrack::Direction;
use crate::packet::{L4, Packet, TcpFlags};
use crate::time::SimTime;
use crate::tuple::{Protocol, Tuple};

/// `net.ipv4.vs.*` and `ipvsadm --set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sysctls {
    /// Connection tracking knows rewritten connections, so that rules can masquerade them. Without,
    /// what IPVS has rewritten is not tracked.
    pub conntrack: bool,
    /// A connection whose real server is gone ends with the next packet, which goes on as if it
    /// were of none; else it is dropped. A client that opens anew towards a real server without
    /// weight gets another.
    pub expire_nodest_conn: bool,
    /// A client does not keep its place at a real server without weight.
    pub expire_quiescent_template: bool,
    /// Bit 0: a client that opens anew from a port whose connection has ended gets a real server
    /// anew.
    pub conn_reuse_mode: u8,
    /// Not a setting: kernels before 5.9 drop the SYN that opens a connection anew from a port in
    /// use even where connection tracking has begun a new entry for it. The client's next one, a
    /// second later, is scheduled.
    // Kernel 5.9: "ipvs: allow connection reuse for unconfirmed conntrack"
    pub drops_reused_syn: bool,
    /// How long connections stay.
    pub timeouts: Timeouts,
}

impl Default for Sysctls {
    fn default() -> Sysctls {
        Sysctls {
            conntrack: false,
            expire_nodest_conn: false,
            expire_quiescent_template: false,
            conn_reuse_mode: 1,
            drops_reused_syn: false,
            timeouts: Timeouts::default(),
        }
    }
}

impl Sysctls {
    /// Returns what kube-proxy sets. On kernels from 5.9 on it leaves `conn_reuse_mode` alone.
    // Kubernetes: pkg/proxy/ipvs/proxier.go, NewProxier
    pub fn kube_proxy() -> Sysctls {
        Sysctls {
            conntrack: true,
            expire_nodest_conn: true,
            expire_quiescent_template: true,
            ..Sysctls::default()
        }
    }
}

/// What IPVS keeps between packets: connections, and where schedulers stand.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Its settings.
    pub sysctls: Sysctls,
    table: Table,
    positions: BTreeMap<ServiceId, Position>,
}

/// What a request is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// It is none of IPVS's.
    Pass,
    /// It belongs to a connection, which has seen it; of one-packet scheduling only the real
    /// server is known.
    Forward(IpAddr, u16, Forward, Tracking),
    /// No real server takes it: its sender is told.
    Refused,
    /// It is dropped: the real server is gone, or the entry that it still has in connection
    /// tracking is another connection's.
    Dropped,
}

/// Whether connection tracking is to know what a packet became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracking {
    Kept,
    Off,
}

impl State {
    /// Returns a state without connections.
    pub fn new(sysctls: Sysctls) -> State {
        State { sysctls, ..State::default() }
    }

    /// Returns whether there is nothing that time could end.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.table.is_empty()
    }

    /// Ends what has expired. Returns the original tuples of the entries of connection tracking
    /// that end with it.
    pub(crate) fn expire(&mut self, now: SimTime) -> Vec<Tuple> {
        self.table.expire(now)
    }

    /// Returns the connections in order of their clients' tuples, as of the last packet.
    pub fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.table.connections()
    }

    /// Returns how many connections a real server has, as of the last packet.
    pub fn load(&self, real: &RealServer) -> Load {
        self.table.load(real)
    }

    /// Returns what is configured with the counts of connections, as `ipvsadm -Ln` lists it.
    pub fn counted(&self, configured: &super::Ipvs) -> super::Ipvs {
        let mut counted = configured.clone();
        for service in &mut counted.services {
            for to in &mut service.destinations {
                let load = self.load(&(service.id, to.address, to.port));
                (to.active, to.inactive) = (load.active, load.inactive);
            }
        }
        counted
    }

    /// Says what becomes of a packet from a client. `confirmed` tells that connection tracking
    /// knew its connection before. A connection that ends here takes the entry of connection
    /// tracking with it whose original tuple is put into `ended`.
    pub(crate) fn request(
        &mut self,
        now: SimTime,
        services: &dyn Services,
        packet: &Packet,
        confirmed: bool,
        ended: &mut Option<Tuple>,
    ) -> Request {
        let opens = opens(packet);
        let mut known = self.table.request(&packet.tuple);
        if let Some(at) = known
            && opens
            && self.begins_anew(at, services)
        {
            let uses_entry = confirmed || self.sysctls.drops_reused_syn;
            if self.end(at, uses_entry, ended) {
                return Request::Dropped;
            }
            known = None;
        }
        if let Some(at) = known
            && destination(services, &self.table.get(at).real).is_none()
        {
            if !self.sysctls.expire_nodest_conn {
                return Request::Dropped;
            }
            if self.end(at, confirmed, ended) {
                return Request::Dropped;
            }
            known = None;
        }
        let at = match known {
            Some(at) => at,
            None => match self.schedule(now, services, packet) {
                Ok(at) => at,
                Err(request) => return request,
            },
        };
        self.table.seen(now, at, Direction::Original, packet, &self.sysctls.timeouts);
        let connection = self.table.get(at);
        let to = connection.reply;
        let forward =
            destination(services, &connection.real).map_or(Forward::Masq, |to| to.forward);
        let tracking = if connection.tracked { Tracking::Kept } else { Tracking::Off };
        Request::Forward(to.src(), to.src_part, forward, tracking)
    }

    /// Ends a connection whose client goes on. Returns whether the packet's entry in connection
    /// tracking is the connection's, and so ends with it, and the packet, too; otherwise the
    /// packet has an entry of its own, and the old one stays.
    // Kernel: ip_vs.h, ip_vs_conn_uses_old_conntrack
    fn end(&mut self, at: u32, has_entry: bool, ended: &mut Option<Tuple>) -> bool {
        let uses_entry = self.table.get(at).tracked && has_entry;
        let tracked = self.table.remove(at);
        *ended = tracked.filter(|_| uses_entry);
        uses_entry
    }

    /// Returns whether a client that opens a connection from a port in use gets a real server
    /// anew.
    // Kernel: ip_vs_core.c, ip_vs_in_hook, is_new_conn_expected
    fn begins_anew(&self, at: u32, services: &dyn Services) -> bool {
        if self.sysctls.expire_nodest_conn && self.is_quiesced(at, services) {
            return true;
        }
        let ended = matches!(self.table.get(at).state, ConnState::TimeWait | ConnState::Close);
        self.sysctls.conn_reuse_mode != 0 && !self.table.is_controlled(at) && ended
    }

    fn is_quiesced(&self, at: u32, services: &dyn Services) -> bool {
        destination(services, &self.table.get(at).real).is_some_and(|to| to.weight == 0)
    }

    /// Makes a connection of a packet that opens one.
    // Kernel: ip_vs_proto_tcp.c, tcp_conn_schedule; ip_vs_core.c, ip_vs_schedule, ip_vs_leave
    fn schedule(
        &mut self,
        now: SimTime,
        services: &dyn Services,
        packet: &Packet,
    ) -> Result<u32, Request> {
        let tuple = &packet.tuple;
        let may_open = match packet.l4 {
            L4::Tcp { flags, .. } => {
                flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::RST)
            }
            _ => true,
        };
        let service = find(services, packet).filter(|_| may_open).ok_or(Request::Pass)?;
        let quiescent = self.sysctls.expire_quiescent_template;
        let place = self.table.place(service, tuple.src(), |real| {
            let to = destination(services, real);
            to.is_some_and(|to| to.weight > 0 || !quiescent)
        });
        let to = match place {
            Some((_, address, port)) => {
                let is_it = |to: &&Destination| (to.address, to.port) == (address, port);
                service.destinations.iter().find(is_it)
            }
            None => self.choose(service, (tuple.src(), tuple.src_part)),
        };
        let to = to.ok_or(Request::Refused)?;
        if service.one_packet && tuple.protocol == Protocol::UDP {
            let port = if to.port == 0 { tuple.dst_part } else { to.port };
            let tracking = Tracking::Off;
            return Err(Request::Forward(to.address, port, to.forward, tracking));
        }
        Ok(self.table.add(now, service, to, *tuple, self.sysctls.conntrack))
    }

    /// Lets a service's scheduler choose as for a connection that is never seen again.
    pub fn pass_turn(&mut self, services: &dyn Services, id: &ServiceId) {
        if let Some(service) = services.service(id) {
            let nobody = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
            let _ = self.choose(service, (nobody, 0));
        }
    }

    fn choose<'s>(
        &mut self,
        service: &'s Service,
        client: (IpAddr, u16),
    ) -> Option<&'s Destination> {
        let loaded = |to: &'s Destination| -> Loaded<'s> {
            (to, self.table.load(&(service.id, to.address, to.port)))
        };
        let list: Vec<Loaded<'s>> = service.destinations.iter().map(loaded).collect();
        let position = self.positions.entry(service.id).or_default();
        let at = position.choose(service, &list, client)?;
        Some(list[at].0)
    }

    /// Returns the address and port that a real server's packet is to come from, having noted it.
    pub(crate) fn reply(&mut self, now: SimTime, packet: &Packet) -> Option<(Tuple, Tracking)> {
        let at = self.table.reply(&packet.tuple)?;
        self.table.seen(now, at, Direction::Reply, packet, &self.sysctls.timeouts);
        let connection = self.table.get(at);
        let tracking = if connection.tracked { Tracking::Kept } else { Tracking::Off };
        Some((connection.request, tracking))
    }

    /// Returns the client's tuple of the connection that an ICMP error on its way to the client is
    /// about.
    // Kernel: ip_vs_core.c, ip_vs_out_icmp
    pub(crate) fn error_about(&self, packet: &Packet) -> Option<Tuple> {
        let L4::IcmpError { quote, .. } = packet.l4 else {
            return None;
        };
        let at = self.table.reply(&quote.reply())?;
        Some(self.table.get(at).request)
    }
}

/// Returns whether a packet may open a connection that is there already.
// Kernel: ip_vs_core.c, is_new_conn
fn opens(packet: &Packet) -> bool {
    match packet.l4 {
        L4::Tcp { flags, .. } => flags.contains(TcpFlags::SYN),
        _ => false,
    }
}

/// Returns the service that a packet is for: by its mark, by its destination, or by its address
/// alone.
// Kernel: ip_vs_ctl.c, ip_vs_service_find
fn find<'s>(services: &'s dyn Services, packet: &Packet) -> Option<&'s Service> {
    let tuple = &packet.tuple;
    let by_mark = (packet.mark != 0)
        .then_some(packet.mark)
        .and_then(|mark| services.service(&ServiceId::Mark { mark, v6: !tuple.is_ipv4() }));
    let at = |port| services.service(&ServiceId::Address(tuple.protocol, tuple.dst(), port));
    by_mark.or_else(|| at(tuple.dst_part)).or_else(|| at(0))
}

fn destination<'s>(
    services: &'s dyn Services,
    (service, address, port): &RealServer,
) -> Option<&'s Destination> {
    let service = services.service(service)?;
    service.destinations.iter().find(|to| (to.address, to.port) == (*address, *port))
}
