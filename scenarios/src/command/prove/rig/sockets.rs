//! The sockets of the kernel arm.

use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd as _, OwnedFd};

use netfilter_model::DeviceId;
use netfilter_model::tuple::Protocol;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, NetlinkAddr, SockFlag, SockProtocol,
    SockType, SockaddrIn, SockaddrIn6, bind, recv, recvfrom, recvmsg, send, sendto, setsockopt,
    socket, sockopt,
};

use super::super::place::{CABLES, Place};
use super::super::seen::Seen;
use super::super::wire;
use super::{RigError, machine};

/// A frame that this socket itself sent.
// Kernel: uapi/linux/if_packet.h, PACKET_OUTGOING
const OUTGOING: u8 = 4;

/// The far end of a cable.
pub(super) struct Cable {
    pub(super) dev: DeviceId,
    socket: OwnedFd,
}

impl Cable {
    /// Opens all, in the namespace where they end.
    pub(super) fn all() -> Result<Vec<Cable>, RigError> {
        let addresses: Vec<_> =
            getifaddrs().map_err(|error| machine("getifaddrs", error))?.collect();
        let open = |dev: DeviceId| {
            let name = format!("far{}", dev.0);
            let of = addresses.iter().filter(|address| address.interface_name == name);
            let link = of.filter_map(|address| address.address?.as_link_addr().copied()).next();
            let link = link.ok_or_else(|| machine(&name, "no such device"))?;
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            let opened = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll);
            let socket = opened.map_err(|error| machine("a packet socket", error))?;
            bind(socket.as_raw_fd(), &link).map_err(|error| machine(&name, error))?;
            Ok(Cable { dev, socket })
        };
        CABLES.into_iter().map(open).collect()
    }

    pub(super) fn write(&self, frame: &[u8]) {
        // A frame that cannot be sent does not arrive: the comparison will say so.
        let _ = send(self.socket.as_raw_fd(), frame, MsgFlags::empty());
    }

    /// Reads what has arrived.
    pub(super) fn read(&self, seen: &mut Vec<Seen>) {
        let mut buffer = [0; 2048];
        loop {
            match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut buffer) {
                Ok((len, from)) => {
                    if from.is_some_and(|from| from.pkttype() == OUTGOING) {
                        continue;
                    }
                    let frame = &buffer[..len.min(buffer.len())];
                    seen.extend(self.seen(frame));
                }
                Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }

    fn seen(&self, frame: &[u8]) -> Option<Seen> {
        let packet = wire::decode(frame.get(14..)?)?;
        let to: [u8; 6] = frame[..6].try_into().ok()?;
        Some(Seen { at: Place::on_cable(self.dev, to)?, packet })
    }
}

/// Hears what the node itself is sent, behind INPUT.
pub(super) struct Listener {
    socket: OwnedFd,
    protocol: Protocol,
    v4: bool,
}

impl Listener {
    pub(super) fn all() -> Result<Vec<Listener>, RigError> {
        let kinds = [
            (true, SockProtocol::Tcp, Protocol::TCP),
            (true, SockProtocol::Udp, Protocol::UDP),
            (true, SockProtocol::Icmp, Protocol::ICMP),
            (false, SockProtocol::Tcp, Protocol::TCP),
            (false, SockProtocol::Udp, Protocol::UDP),
            (false, SockProtocol::IcmpV6, Protocol::ICMPV6),
        ];
        let open = |(v4, number, protocol): (bool, SockProtocol, Protocol)| {
            let family = if v4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            let opened = socket(family, SockType::Raw, flags, number);
            let socket = opened.map_err(|error| machine("a raw socket", error))?;
            if !v4 {
                setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)
                    .map_err(|error| machine("IPV6_RECVPKTINFO", error))?;
            }
            Ok(Listener { socket, protocol, v4 })
        };
        kinds.into_iter().map(open).collect()
    }

    pub(super) fn read(&self, seen: &mut Vec<Seen>) {
        loop {
            let read = if self.v4 { self.read_v4() } else { self.read_v6() };
            match read {
                Ok(packet) => {
                    seen.extend(packet.map(|packet| Seen { at: Place::Node, packet }));
                }
                Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }

    fn read_v4(&self) -> Result<Option<netfilter_model::packet::Packet>, Errno> {
        let mut buffer = [0; 2048];
        let len = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        Ok(wire::decode(&buffer[..len]))
    }

    /// Reads a packet whose IP header the kernel keeps.
    fn read_v6(&self) -> Result<Option<netfilter_model::packet::Packet>, Errno> {
        let mut buffer = [0; 2048];
        let mut control = vec![0; 128];
        let mut pieces = [IoSliceMut::new(&mut buffer)];
        let message = recvmsg::<SockaddrIn6>(
            self.socket.as_raw_fd(),
            &mut pieces,
            Some(&mut control),
            MsgFlags::empty(),
        )?;
        let from = message.address.map(|address| address.ip());
        let to = message.cmsgs().ok().and_then(|mut parts| {
            parts.find_map(|part| match part {
                ControlMessageOwned::Ipv6PacketInfo(info) => Some(info.ipi6_addr.s6_addr),
                _ => None,
            })
        });
        let len = message.bytes;
        let (Some(from), Some(to)) = (from, to) else {
            return Ok(None);
        };
        Ok(wire::transport_of(self.protocol, from.into(), IpAddr::from(to), &buffer[..len]))
    }
}

/// Sends packets of the node, with their IP headers.
pub(super) struct Sender {
    four: OwnedFd,
    six: OwnedFd,
}

impl Sender {
    pub(super) fn try_new() -> Result<Sender, RigError> {
        let open = |family| {
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            socket(family, SockType::Raw, flags, SockProtocol::Raw)
                .map_err(|error| machine("a raw socket", error))
        };
        Ok(Sender { four: open(AddressFamily::Inet)?, six: open(AddressFamily::Inet6)? })
    }

    pub(super) fn send(&self, packet: &[u8], to: IpAddr, mark: u32) {
        let socket = if to.is_ipv4() { &self.four } else { &self.six };
        // What the node's own rules or routes refuse is an error here, and nowhere else.
        let _ = setsockopt(socket, sockopt::Mark, &mark);
        let (fd, flags) = (socket.as_raw_fd(), MsgFlags::empty());
        let _ = match to {
            IpAddr::V4(to) => {
                sendto(fd, packet, &SockaddrIn::from(SocketAddrV4::new(to, 0)), flags)
            }
            IpAddr::V6(to) => {
                let to = SockaddrIn6::from(SocketAddrV6::new(to, 0, 0, 0));
                sendto(fd, packet, &to, flags)
            }
        };
    }
}

/// Forgets connections.
pub(super) struct Conntrack {
    socket: OwnedFd,
}

impl Conntrack {
    pub(super) fn try_new() -> Result<Conntrack, RigError> {
        let opened = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkNetFilter,
        );
        let socket = opened.map_err(|error| machine("a netlink socket", error))?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))
            .map_err(|error| machine("a netlink socket", error))?;
        Ok(Conntrack { socket })
    }

    /// Deletes all entries.
    // Kernel: uapi/linux/netfilter/nfnetlink_conntrack.h, IPCTNL_MSG_CT_DELETE without a tuple
    pub(super) fn flush(&self) -> Result<(), RigError> {
        let mut message = Vec::with_capacity(20);
        message.extend(20_u32.to_ne_bytes());
        message.extend((1_u16 << 8 | 2).to_ne_bytes());
        // NLM_F_REQUEST and NLM_F_ACK.
        message.extend(5_u16.to_ne_bytes());
        message.extend([0; 12]);
        let fd = self.socket.as_raw_fd();
        sendto(fd, &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())
            .map_err(|error| machine("flushing connections", error))?;
        let mut answer = [0; 512];
        let len = recv(fd, &mut answer, MsgFlags::empty())
            .map_err(|error| machine("flushing connections", error))?;
        match answer.get(16..20).filter(|_| len >= 20) {
            Some(code) if code == [0; 4] => Ok(()),
            _ => Err(machine("flushing connections", "the kernel refuses")),
        }
    }
}
