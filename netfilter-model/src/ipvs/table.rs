//! The connection table, and how many connections each real server has.
// Kernel: ip_vs_conn.c

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::tcp::{ConnState, Timeouts};
use super::{Destination, Service, ServiceId};
use crate::conntrack::Direction;
use crate::packet::{L4, Packet};
use crate::prefix::Prefix;
use crate::time::SimTime;
use crate::tuple::{Family, Protocol, Side, Tuple};

/// A real server of a virtual service.
pub type RealServer = (ServiceId, IpAddr, u16);

/// A client's place at a real server waits so long at a time for its last connection to end.
// Kernel: ip_vs_conn.c, ip_vs_conn_expire
const TEMPLATE_GRACE: Duration = Duration::from_secs(60);

/// A connection through a virtual service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The client's packets, as they come in.
    pub request: Tuple,
    /// The real server's packets, as they come in.
    pub reply: Tuple,
    /// The service and the real server.
    pub real: RealServer,
    /// How far it is.
    pub state: ConnState,
    /// It counts as active.
    pub active: bool,
    /// When it ends unless another packet comes.
    pub deadline: SimTime,
    /// It has an entry of connection tracking, which ends with it.
    pub(super) tracked: bool,
    /// What keeps its client at the real server.
    template: Option<(Client, u64)>,
}

/// A client of a service, as persistence tells them apart.
type Client = (ServiceId, IpAddr);

/// A client's place at a real server.
#[derive(Clone, Debug)]
struct Template {
    id: u64,
    real: RealServer,
    timeout: Duration,
    deadline: SimTime,
    /// How many connections were made by it.
    controls: u32,
}

/// How many connections a real server has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Established and opening TCP connections.
    pub active: u32,
    /// All others.
    pub inactive: u32,
    upper: u32,
    lower: u32,
    overloaded: bool,
}

impl Load {
    /// Returns whether the real server takes no more for now.
    pub(super) const fn is_overloaded(&self) -> bool {
        self.overloaded
    }

    // Kernel: ip_vs_conn.c, ip_vs_bind_dest
    fn added(&mut self, to: &Destination) {
        self.inactive += 1;
        (self.upper, self.lower) = (to.upper, to.lower);
        if self.upper != 0 && self.active + self.inactive >= self.upper {
            self.overloaded = true;
        }
    }

    // Kernel: ip_vs_conn.c, ip_vs_unbind_dest
    fn removed(&mut self, active: bool) {
        let count = if active { &mut self.active } else { &mut self.inactive };
        *count -= 1;
        let total = self.active + self.inactive;
        let is_below = if self.lower != 0 {
            total < self.lower
        } else {
            self.upper == 0 || total * 4 < self.upper * 3
        };
        self.overloaded &= !is_below;
    }
}

/// Whose time is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Connection(u32),
    Template(Client),
}

/// All connections of a network namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    slots: Vec<Option<Connection>>,
    free: Vec<u32>,
    requests: BTreeMap<Tuple, u32>,
    /// Newest last. A client's port may be in use at several services with one real server.
    replies: BTreeMap<Tuple, Vec<u32>>,
    templates: BTreeMap<Client, Template>,
    timers: BTreeSet<(SimTime, Timer)>,
    loads: BTreeMap<RealServer, Load>,
    last_template: u64,
}

impl Table {
    pub(super) fn is_empty(&self) -> bool {
        self.timers.is_empty()
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.requests.values().map(|at| self.get(*at))
    }

    pub(super) fn get(&self, at: u32) -> &Connection {
        self.slots[at as usize].as_ref().expect("indexes name connections")
    }

    pub(super) fn load(&self, real: &RealServer) -> Load {
        self.loads.get(real).copied().unwrap_or_default()
    }

    pub(super) fn request(&self, tuple: &Tuple) -> Option<u32> {
        self.requests.get(tuple).copied()
    }

    pub(super) fn reply(&self, tuple: &Tuple) -> Option<u32> {
        self.replies.get(tuple)?.last().copied()
    }

    /// Ends what has expired. Returns the original tuples of the entries of connection tracking
    /// that end with it.
    pub(super) fn expire(&mut self, now: SimTime) -> Vec<Tuple> {
        let mut tracked = Vec::new();
        while let Some(&(deadline, timer)) = self.timers.first() {
            if deadline > now {
                break;
            }
            match timer {
                Timer::Connection(at) => tracked.extend(self.remove(at)),
                Timer::Template(client) => self.expire_template(deadline, client),
            }
        }
        tracked
    }

    fn expire_template(&mut self, deadline: SimTime, client: Client) {
        self.timers.remove(&(deadline, Timer::Template(client)));
        let Some(template) = self.templates.get_mut(&client) else {
            return;
        };
        if template.controls > 0 {
            // Also what later connections renew it by.
            template.timeout = TEMPLATE_GRACE;
            template.deadline = deadline + TEMPLATE_GRACE;
            self.timers.insert((template.deadline, Timer::Template(client)));
        } else {
            self.templates.remove(&client);
        }
    }

    /// Returns where a client has its place, if it has one for which `stays` holds. Otherwise the
    /// place is lost.
    // Kernel: ip_vs_conn.c, ip_vs_ct_in_get, ip_vs_check_template
    pub(super) fn place(
        &mut self,
        service: &Service,
        client: IpAddr,
        stays: impl FnOnce(&RealServer) -> bool,
    ) -> Option<RealServer> {
        let client = key(service, client)?;
        let template = self.templates.get(&client)?;
        let (real, deadline) = (template.real, template.deadline);
        if stays(&real) {
            return Some(real);
        }
        self.timers.remove(&(deadline, Timer::Template(client)));
        self.templates.remove(&client);
        None
    }

    /// Makes a connection of a packet's flow to a real server; the client gets or keeps its place
    /// there if the service has persistence.
    // Kernel: ip_vs_conn.c, ip_vs_conn_new; ip_vs_core.c, ip_vs_sched_persist
    pub(super) fn add(
        &mut self,
        now: SimTime,
        service: &Service,
        to: &Destination,
        request: Tuple,
        tracked: bool,
    ) -> u32 {
        let real = (service.id, to.address, to.port);
        let template = key(service, request.src()).map(|client| {
            let timeout = service.persistence.map_or(0, |persistence| persistence.timeout);
            (client, self.keep(now, client, real, Duration::from_secs(timeout.into())))
        });
        let mut translated = request;
        translated.set_address(Side::Destination, to.address);
        if to.port != 0 {
            translated.set_nat_part(Side::Destination, to.port);
        }
        let reply = translated.reply();
        let state = match request.protocol {
            Protocol::UDP => ConnState::Udp,
            Protocol::SCTP => ConnState::Sctp,
            _ => ConnState::None,
        };
        let deadline = now + Duration::from_secs(3);
        let connection =
            Connection { request, reply, real, state, active: false, deadline, tracked, template };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = Some(connection);
                at
            }
            None => {
                self.slots.push(Some(connection));
                (self.slots.len() - 1) as u32
            }
        };
        self.requests.insert(request, at);
        self.replies.entry(reply).or_default().push(at);
        self.timers.insert((deadline, Timer::Connection(at)));
        self.loads.entry(real).or_default().added(to);
        at
    }

    /// Makes or renews a client's place, and returns its number.
    fn keep(&mut self, now: SimTime, client: Client, real: RealServer, timeout: Duration) -> u64 {
        let deadline = now + timeout;
        let id = match self.templates.get_mut(&client) {
            Some(template) => {
                self.timers.remove(&(template.deadline, Timer::Template(client)));
                // A place keeps the time that it has, whatever the service's is now.
                template.deadline = now + template.timeout;
                template.controls += 1;
                self.timers.insert((template.deadline, Timer::Template(client)));
                return template.id;
            }
            None => {
                self.last_template += 1;
                self.last_template
            }
        };
        let template = Template { id, real, timeout, deadline, controls: 1 };
        self.templates.insert(client, template);
        self.timers.insert((deadline, Timer::Template(client)));
        id
    }

    /// Notes a packet of a connection.
    pub(super) fn seen(
        &mut self,
        now: SimTime,
        at: u32,
        direction: Direction,
        packet: &Packet,
        timeouts: &Timeouts,
    ) {
        let connection = self.slots[at as usize].as_mut().expect("indexes name connections");
        if let L4::Tcp { flags, .. } = packet.l4 {
            connection.state = connection.state.after(direction, flags);
        }
        let active = connection.state.is_active();
        if active != connection.active {
            connection.active = active;
            let load = self.loads.get_mut(&connection.real).expect("it counts this connection");
            if active {
                (load.active, load.inactive) = (load.active + 1, load.inactive - 1);
            } else {
                (load.active, load.inactive) = (load.active - 1, load.inactive + 1);
            }
        }
        self.timers.remove(&(connection.deadline, Timer::Connection(at)));
        connection.deadline = now + connection.state.timeout(timeouts);
        self.timers.insert((connection.deadline, Timer::Connection(at)));
    }

    /// Ends a connection. Returns the original tuple of the entry of connection tracking that
    /// ends with it.
    pub(super) fn remove(&mut self, at: u32) -> Option<Tuple> {
        let connection = self.slots[at as usize].take()?;
        self.free.push(at);
        self.timers.remove(&(connection.deadline, Timer::Connection(at)));
        self.requests.remove(&connection.request);
        if let Some(list) = self.replies.get_mut(&connection.reply) {
            list.retain(|other| *other != at);
            if list.is_empty() {
                self.replies.remove(&connection.reply);
            }
        }
        if let Some((client, id)) = &connection.template
            && let Some(template) = self.templates.get_mut(client)
            && template.id == *id
        {
            template.controls -= 1;
        }
        let load = self.loads.get_mut(&connection.real).expect("it counts this connection");
        load.removed(connection.active);
        if (load.active, load.inactive) == (0, 0) && !load.overloaded {
            self.loads.remove(&connection.real);
        }
        connection.tracked.then_some(connection.request)
    }

    pub(super) fn is_controlled(&self, at: u32) -> bool {
        self.get(at).template.is_some()
    }
}

/// Returns what persistence knows a client by, if the service has any.
fn key(service: &Service, client: IpAddr) -> Option<Client> {
    let len = service.persistence?.len.min(Family::of(client).bits());
    Some((service.id, Prefix::new(client, len).address()))
}
