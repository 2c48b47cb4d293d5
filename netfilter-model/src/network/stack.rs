//! What hosts do with packets for themselves: TCP, UDP, echo; and what clients do.

use std::net::IpAddr;

use super::socket::{
    Close, Datagram, Listener, SocketError, SocketId, SocketState, TcpSocket, UdpSocket,
};
use super::{MTU, Network, Node, NodeId, SendError, Sight};
use crate::host::Socket;
use crate::netns::Delivery;
use crate::packet::{IcmpError, L4, Packet, Segment, TcpFlags};
use crate::tuple::{Protocol, Tuple};

/// The window that hosts announce, without scale.
const WINDOW: u16 = 64240;

/// The largest IP packet there is: the loopback device takes more.
const LO_MTU: u32 = 65_535;

/// The bytes of a line.
const LINE: u16 = 8;

impl Network {
    /// Returns who made an answer, from the packet's id; `None` for a request.
    ///
    /// Requests must have ids below 2³²; answers keep them in their lower half.
    pub const fn answered_by(id: u64) -> Option<NodeId> {
        match (id >> 32) as u32 {
            0 => None,
            node => Some(NodeId(node - 1)),
        }
    }

    pub(super) const fn answer_id(node: NodeId, id: u64) -> u64 {
        (id & 0xffff_ffff) | (node.0 as u64 + 1) << 32
    }

    /// Starts a server.
    pub fn listen(&mut self, id: NodeId, listener: Listener) {
        self.node_mut(id).sockets.listeners.push(listener);
    }

    /// Connects by TCP. `id` marks the packets.
    ///
    /// # Errors
    ///
    /// If there is no way, or addresses of two families.
    pub fn connect(
        &mut self,
        node: NodeId,
        src: (Option<IpAddr>, u16),
        dst: (IpAddr, u16),
        id: u64,
        mark: u32,
    ) -> Result<SocketId, SendError> {
        let chosen = self.source_for(node, dst.0)?;
        let address = src.0.unwrap_or(chosen);
        let tuple = Tuple::try_new(Protocol::TCP, address, src.1, dst.0, dst.1);
        let tuple = tuple.ok_or(SendError::Invalid)?;
        let isn = (id as u32) << 20;
        let sockets = &mut self.node_mut(node).sockets.tcp;
        sockets.push(Some(TcpSocket {
            tuple,
            state: SocketState::SynSent,
            accepted: false,
            received: None,
            ended: false,
            error: None,
            id,
            mark,
            snd_nxt: isn,
            rcv_nxt: 0,
        }));
        let at = sockets.len() - 1;
        self.send_segment(node, at, TcpFlags::SYN, 0);
        self.settle();
        Ok(SocketId { node, at })
    }

    /// Sends a line by a connection, if it is open; `id` marks the packet and its answer.
    pub fn write(&mut self, socket: SocketId, id: u64) {
        if let Some(tcp) = self.tcp_mut(socket)
            && matches!(tcp.state, SocketState::Established | SocketState::CloseWait)
        {
            tcp.id = id;
            tcp.received = None;
            let flags = TcpFlags::PSH | TcpFlags::ACK;
            self.send_segment(socket.node, socket.at, flags, LINE);
            self.settle();
        }
    }

    /// Closes a connection.
    pub fn close(&mut self, socket: SocketId, how: Close) {
        let Some(tcp) = self.tcp_mut(socket) else {
            return;
        };
        let (flags, next) = match (how, tcp.state) {
            (_, SocketState::Closed) => return,
            (_, SocketState::SynSent) => {
                tcp.state = SocketState::Closed;
                return;
            }
            (Close::Reset, _) => (TcpFlags::RST | TcpFlags::ACK, SocketState::Closed),
            (Close::Fin, SocketState::CloseWait) => {
                (TcpFlags::FIN | TcpFlags::ACK, SocketState::LastAck)
            }
            (Close::Fin, SocketState::Established) => {
                (TcpFlags::FIN | TcpFlags::ACK, SocketState::FinWait)
            }
            (Close::Fin, _) => return,
        };
        tcp.state = next;
        self.send_segment(socket.node, socket.at, flags, 0);
        self.settle();
    }

    /// Returns a connection's end.
    pub fn tcp(&self, socket: SocketId) -> Option<&TcpSocket> {
        self.nodes.get(socket.node.0 as usize)?.sockets.tcp.get(socket.at)?.as_ref()
    }

    fn tcp_mut(&mut self, socket: SocketId) -> Option<&mut TcpSocket> {
        let node = self.nodes.get_mut(socket.node.0 as usize)?;
        node.sockets.tcp.get_mut(socket.at)?.as_mut()
    }

    /// Opens a UDP socket.
    pub fn open_udp(
        &mut self,
        node: NodeId,
        address: Option<IpAddr>,
        port: u16,
        peer: Option<(IpAddr, u16)>,
    ) -> SocketId {
        let sockets = &mut self.node_mut(node).sockets.udp;
        let (received, errors) = (Vec::new(), Vec::new());
        sockets.push(Some(UdpSocket { address, port, peer, received, errors }));
        let at = sockets.len() - 1;
        SocketId { node, at }
    }

    /// Returns a UDP socket.
    pub fn udp(&self, socket: SocketId) -> Option<&UdpSocket> {
        self.nodes.get(socket.node.0 as usize)?.sockets.udp.get(socket.at)?.as_ref()
    }

    /// Closes a UDP socket.
    pub fn close_udp(&mut self, socket: SocketId) {
        let node = self.nodes.get_mut(socket.node.0 as usize);
        if let Some(slot) = node.and_then(|node| node.sockets.udp.get_mut(socket.at)) {
            *slot = None;
        }
    }

    /// Sends a datagram with `size` bytes of payload.
    ///
    /// # Errors
    ///
    /// What the sender is told at once.
    pub fn send_udp(
        &mut self,
        socket: SocketId,
        dst: (IpAddr, u16),
        size: u32,
        id: u64,
        mark: u32,
    ) -> Result<(), SendError> {
        let Some(udp) = self.udp(socket) else {
            return Err(SendError::Invalid);
        };
        let port = udp.port;
        let address = match udp.address {
            Some(address) => address,
            None => self.source_for(socket.node, dst.0)?,
        };
        let tuple = Tuple::try_new(Protocol::UDP, address, port, dst.0, dst.1);
        let tuple = tuple.ok_or(SendError::Invalid)?;
        let header = if address.is_ipv4() { 28 } else { 48 };
        let packet = Packet { mark, ..Packet::udp(id, tuple, header + size) };
        let sent = self.output(socket.node, packet, Some(Socket::default()));
        self.settle();
        sent
    }

    /// Sends an echo request with `size` bytes of payload.
    ///
    /// # Errors
    ///
    /// What the sender is told at once.
    pub fn ping(
        &mut self,
        node: NodeId,
        src: Option<IpAddr>,
        dst: IpAddr,
        echo_id: u16,
        size: u32,
        mark: (u64, u32),
    ) -> Result<(), SendError> {
        let src = match src {
            Some(address) => address,
            None => self.source_for(node, dst)?,
        };
        let (protocol, kind) =
            if dst.is_ipv4() { (Protocol::ICMP, 8) } else { (Protocol::ICMPV6, 128) };
        let tuple = Tuple::try_new(protocol, src, echo_id, dst, kind << 8);
        let tuple = tuple.ok_or(SendError::Invalid)?;
        let header = if dst.is_ipv4() { 28 } else { 48 };
        let packet = Packet::new(mark.0, tuple, L4::IcmpEcho, header + size);
        self.send_packet(node, Packet { mark: mark.1, ..packet })
    }

    /// Returns the ICMP messages that a host got since the last call.
    pub fn take_icmp(&mut self, node: NodeId) -> Vec<Packet> {
        std::mem::take(&mut self.node_mut(node).sockets.icmp)
    }

    /// Hands a packet up that has passed INPUT.
    pub(super) fn deliver(&mut self, id: NodeId, delivery: Delivery) {
        let packet = delivery.packet;
        if packet.bad_checksum || self.nodes[id.0 as usize].mute {
            return;
        }
        match packet.l4 {
            L4::Tcp { flags, segment } => {
                self.take_segment(id, packet, flags, segment.unwrap_or_default());
            }
            L4::Udp => self.take_datagram(id, packet),
            L4::IcmpEcho => self.take_icmp_query(id, packet),
            L4::IcmpError { kind, quote } => {
                self.nodes[id.0 as usize].sockets.icmp.push(packet);
                self.take_icmp_error(id, &packet, kind, &quote);
            }
            L4::Other => self.send_error(id, &packet, IcmpError::ProtocolUnreachable),
        }
    }

    fn take_datagram(&mut self, id: NodeId, packet: Packet) {
        let tuple = packet.tuple;
        let own = (tuple.dst(), tuple.dst_part);
        let peer = (tuple.src(), tuple.src_part);
        let sockets = &mut self.nodes[id.0 as usize].sockets;
        if let Some(at) = sockets.udp_client(own, peer)
            && let Some(socket) = &mut sockets.udp[at]
        {
            socket.received.push(Datagram { from: peer, id: packet.id });
            return;
        }
        let Some(listener) = sockets.listener(&tuple) else {
            return self.send_error(id, &packet, IcmpError::PortUnreachable);
        };
        self.sights.push(Sight::Datagram { node: id, packet });
        // A broadcast address is no source.
        let host = &self.nodes[id.0 as usize].host;
        if listener.answers && host.is_local(tuple.dst()) {
            let len = packet.header_len() + 8 + u32::from(LINE);
            let answer = Packet::udp(Network::answer_id(id, packet.id), tuple.reply(), len);
            let _ = self.output(id, answer, Some(Socket::default()));
        }
    }

    // Kernel: icmp.c, icmp_echo and icmp_timestamp
    fn take_icmp_query(&mut self, id: NodeId, packet: Packet) {
        let kind = (packet.tuple.protocol, packet.tuple.icmp_kind().0);
        let is_query = matches!(kind, (Protocol::ICMP, 8 | 13) | (Protocol::ICMPV6, 128));
        if !is_query {
            self.nodes[id.0 as usize].sockets.icmp.push(packet);
            return;
        }
        let mut tuple = packet.tuple.reply();
        // The answer's code is 0 whatever the query's.
        tuple.dst_part &= 0xff00;
        let answer =
            Packet::new(Network::answer_id(id, packet.id), tuple, L4::IcmpEcho, packet.len);
        let _ = self.output(id, answer, None);
    }

    fn take_icmp_error(&mut self, id: NodeId, packet: &Packet, kind: IcmpError, quote: &Tuple) {
        // Kernel: icmp.c, icmp_unreach: neither ends a connection.
        if matches!(kind, IcmpError::FragmentationNeeded | IcmpError::Other(4 | 5, _)) {
            return;
        }
        let error = SocketError::Icmp { kind, from: packet.tuple.src() };
        let sockets = &mut self.nodes[id.0 as usize].sockets;
        match quote.protocol {
            Protocol::TCP => {
                if let Some(at) = sockets.connection(&quote.reply())
                    && let Some(socket) = &mut sockets.tcp[at]
                    && socket.state == SocketState::SynSent
                {
                    socket.state = SocketState::Closed;
                    socket.error = Some(error);
                }
            }
            Protocol::UDP => {
                let (own, peer) = ((quote.src(), quote.src_part), (quote.dst(), quote.dst_part));
                if let Some(at) = sockets.udp_client(own, peer)
                    && let Some(socket) = &mut sockets.udp[at]
                {
                    socket.errors.push(error);
                }
            }
            _ => {}
        }
    }

    // Kernel: tcp_input.c, tcp_rcv_state_process; a plain handshake, no loss, no reordering
    fn take_segment(&mut self, id: NodeId, packet: Packet, flags: TcpFlags, segment: Segment) {
        let sockets = &mut self.nodes[id.0 as usize].sockets;
        let Some(at) = sockets.connection(&packet.tuple) else {
            let opens = flags.masked(TcpFlags::FIN_SYN_RST_ACK) == TcpFlags::SYN;
            if !opens || sockets.listener(&packet.tuple).is_none() {
                return self.refuse(id, &packet);
            }
            let answer = Network::answer_id(id, packet.id);
            sockets.tcp.push(Some(TcpSocket {
                tuple: packet.tuple.reply(),
                state: SocketState::SynReceived,
                accepted: true,
                received: None,
                ended: false,
                error: None,
                id: answer,
                mark: 0,
                snd_nxt: (packet.id as u32) << 20 | 0x8_0000,
                rcv_nxt: segment.seq.wrapping_add(1),
            }));
            let at = sockets.tcp.len() - 1;
            self.send_segment(id, at, TcpFlags::SYN_ACK, 0);
            return;
        };
        let Some(socket) = &mut sockets.tcp[at] else {
            return;
        };
        let acks = flags.contains(TcpFlags::ACK);
        if socket.state == SocketState::SynSent {
            if acks && segment.ack != socket.snd_nxt {
                return self.refuse(id, &packet);
            }
            if flags.contains(TcpFlags::RST) {
                if acks {
                    socket.state = SocketState::Closed;
                    socket.error = Some(SocketError::Refused);
                }
                return;
            }
            if flags.contains(TcpFlags::SYN_ACK) {
                socket.rcv_nxt = segment.seq.wrapping_add(1);
                socket.state = SocketState::Established;
                self.send_segment(id, at, TcpFlags::ACK, 0);
            }
            return;
        }
        if flags.contains(TcpFlags::RST) {
            if segment.seq == socket.rcv_nxt {
                socket.error = Some(SocketError::Reset);
                socket.state = SocketState::Closed;
            }
            return;
        }
        if flags.contains(TcpFlags::SYN) {
            let again = socket.state == SocketState::SynReceived;
            if again {
                socket.snd_nxt = socket.snd_nxt.wrapping_sub(1);
            }
            return self.send_segment(
                id,
                at,
                if again { TcpFlags::SYN_ACK } else { TcpFlags::ACK },
                0,
            );
        }
        if !acks {
            return;
        }
        if socket.state == SocketState::SynReceived {
            if segment.ack != socket.snd_nxt {
                return self.refuse(id, &packet);
            }
            socket.state = SocketState::Established;
        }
        if socket.state == SocketState::LastAck && segment.ack == socket.snd_nxt {
            socket.state = SocketState::Closed;
            return;
        }
        let fin = flags.contains(TcpFlags::FIN);
        if segment.data == 0 && !fin {
            return;
        }
        if segment.seq != socket.rcv_nxt {
            return self.send_segment(id, at, TcpFlags::ACK, 0);
        }
        socket.rcv_nxt = socket.rcv_nxt.wrapping_add(u32::from(segment.data) + u32::from(fin));
        if segment.data > 0 {
            socket.received = Some(packet.id);
        }
        self.take_data(id, at, &packet, segment.data > 0, fin);
    }

    /// Acknowledges data and the end of data; a server answers and closes.
    fn take_data(&mut self, id: NodeId, at: usize, packet: &Packet, data: bool, fin: bool) {
        self.send_segment(id, at, TcpFlags::ACK, 0);
        let Some(socket) = &mut self.nodes[id.0 as usize].sockets.tcp[at] else {
            return;
        };
        let accepted = socket.accepted;
        if data && accepted {
            socket.id = Network::answer_id(id, packet.id);
            self.sights.push(Sight::Data { node: id, packet: *packet });
            self.send_segment(id, at, TcpFlags::PSH | TcpFlags::ACK, LINE);
        }
        let Some(socket) = &mut self.nodes[id.0 as usize].sockets.tcp[at] else {
            return;
        };
        if fin {
            socket.ended = true;
            socket.state = match socket.state {
                SocketState::FinWait => SocketState::Closed,
                _ if accepted => SocketState::LastAck,
                _ => SocketState::CloseWait,
            };
            if socket.state == SocketState::LastAck {
                self.send_segment(id, at, TcpFlags::FIN | TcpFlags::ACK, 0);
            }
        }
    }

    /// Sends a segment of a connection.
    fn send_segment(&mut self, id: NodeId, at: usize, flags: TcpFlags, data: u16) {
        let Node { host, sockets, .. } = &mut self.nodes[id.0 as usize];
        let Some(socket) = sockets.tcp.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        let ack = if flags.contains(TcpFlags::ACK) { socket.rcv_nxt } else { 0 };
        let syn = flags.contains(TcpFlags::SYN);
        // Segments of SYN announce no window scale: windows are what they say.
        let (options, mss) = if syn {
            let mtu = if host.is_local(socket.tuple.dst()) { LO_MTU } else { MTU };
            let headers = if socket.tuple.is_ipv4() { 40 } else { 60 };
            (1 << 2 | 1 << 4 | 1 << 8, (mtu - headers) as u16)
        } else {
            (1 << 8, 0)
        };
        let segment = Segment {
            seq: socket.snd_nxt,
            ack,
            window: WINDOW,
            data,
            options,
            mss,
            ..Segment::default()
        };
        let ends = syn || flags.contains(TcpFlags::FIN);
        socket.snd_nxt = socket.snd_nxt.wrapping_add(u32::from(data) + u32::from(ends));
        let (tuple, mark, packet_id) = (socket.tuple, socket.mark, socket.id);
        let l4 = L4::Tcp { flags, segment: Some(segment) };
        let header = if tuple.is_ipv4() { 52 } else { 72 };
        let packet = Packet { mark, ..Packet::new(packet_id, tuple, l4, header + u32::from(data)) };
        // Kernel: tcp_output.c: what is dropped on this host is a loss like another.
        let _ = self.output(id, packet, Some(Socket::default()));
    }

    /// Answers a segment that belongs to nobody.
    // Kernel: tcp_ipv4.c, tcp_v4_send_reset
    fn refuse(&mut self, id: NodeId, about: &Packet) {
        if let Some(packet) = Packet::tcp_reset(Network::answer_id(id, about.id), about) {
            let _ = self.output(id, packet, Some(Socket::default()));
        }
    }
}
