//! Sockets as data.

use std::net::IpAddr;

use super::NodeId;
use crate::packet::{IcmpError, Packet};
use crate::tuple::{Protocol, Tuple};

/// A server: it accepts whatever comes to its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
    /// Only at this address.
    pub address: Option<IpAddr>,
    /// A UDP server that answers.
    pub answers: bool,
}

/// Names a socket of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketId {
    pub(super) node: NodeId,
    pub(super) at: usize,
}

/// How a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// With FIN.
    Fin,
    /// With RST.
    Reset,
}

/// Where a TCP connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    /// A SYN was sent.
    SynSent,
    /// A SYN was answered.
    SynReceived,
    /// Data may flow.
    Established,
    /// This side has closed.
    FinWait,
    /// The other side has closed.
    CloseWait,
    /// Both have closed, and the last acknowledgement is out.
    LastAck,
    /// It is over.
    Closed,
}

/// What a socket was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketError {
    /// ECONNREFUSED by RST.
    Refused,
    /// ECONNRESET.
    Reset,
    /// An ICMP error.
    Icmp {
        /// Which.
        kind: IcmpError,
        /// Who sent it.
        from: IpAddr,
    },
}

/// One end of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// Its packets, as they leave.
    pub tuple: Tuple,
    /// Where it stands.
    pub state: SocketState,
    /// It was accepted by a listener.
    pub accepted: bool,
    /// The id of the last segment with data that it got.
    pub received: Option<u64>,
    /// The other side has closed.
    pub ended: bool,
    /// What it was told.
    pub error: Option<SocketError>,
    pub(super) id: u64,
    pub(super) mark: u32,
    pub(super) snd_nxt: u32,
    pub(super) rcv_nxt: u32,
}

/// A datagram that a socket got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// From where.
    pub from: (IpAddr, u16),
    /// The id of its packet.
    pub id: u64,
}

/// A UDP socket of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpSocket {
    /// Its address, if it is bound to one.
    pub address: Option<IpAddr>,
    /// Its port.
    pub port: u16,
    /// Whom it is connected to: it hears nobody else.
    pub peer: Option<(IpAddr, u16)>,
    /// What it got.
    pub received: Vec<Datagram>,
    /// What it was told.
    pub errors: Vec<SocketError>,
}

/// The sockets of a host.
#[derive(Clone, Debug, Default)]
pub(super) struct Sockets {
    pub(super) listeners: Vec<Listener>,
    pub(super) tcp: Vec<Option<TcpSocket>>,
    pub(super) udp: Vec<Option<UdpSocket>>,
    /// What raw ICMP sockets got.
    pub(super) icmp: Vec<Packet>,
}

impl Sockets {
    /// Returns the listener for a packet: one bound to its address before one bound to none.
    pub(super) fn listener(&self, tuple: &Tuple) -> Option<Listener> {
        let (dst, port) = (tuple.dst(), tuple.dst_part);
        let fits = |listener: &&Listener| {
            listener.protocol == tuple.protocol
                && listener.port == port
                && listener.address.is_none_or(|address| address == dst)
        };
        let all = || self.listeners.iter().filter(fits);
        all().find(|listener| listener.address.is_some()).or_else(|| all().next()).copied()
    }

    /// Returns the place of the connection to which a received packet belongs.
    pub(super) fn connection(&self, tuple: &Tuple) -> Option<usize> {
        let own = tuple.reply();
        self.tcp.iter().position(|socket| {
            let socket = socket.as_ref();
            socket.is_some_and(|s| s.tuple == own && s.state != SocketState::Closed)
        })
    }

    /// Returns the place of the client's socket that hears a peer at an address of ours.
    pub(super) fn udp_client(&self, own: (IpAddr, u16), peer: (IpAddr, u16)) -> Option<usize> {
        self.udp.iter().position(|socket| {
            socket.as_ref().is_some_and(|socket| {
                socket.port == own.1
                    && socket.address.is_none_or(|address| address == own.0)
                    && socket.peer.is_none_or(|connected| connected == peer)
            })
        })
    }
}
