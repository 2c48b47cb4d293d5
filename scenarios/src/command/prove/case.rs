//! A case: a node, its rules, and packets. As a file it is JSON.

use std::net::IpAddr;

use netfilter_model::packet::TcpFlags;
use serde::{Deserialize, Serialize};

use super::place::{Place, Settings};

/// Who loads the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Backend {
    /// `iptables-legacy-restore`.
    Legacy,
    /// `iptables-nft-restore`.
    IptablesNft,
    /// `nft -f`.
    Nft,
}

impl Backend {
    /// All of them.
    pub(super) const ALL: [Backend; 3] = [Backend::Legacy, Backend::IptablesNft, Backend::Nft];

    /// Returns its name in a case file.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Backend::Legacy => "legacy",
            Backend::IptablesNft => "iptables-nft",
            Backend::Nft => "nft",
        }
    }

    /// Returns the programs that it needs.
    pub(super) const fn tools(self) -> &'static [&'static str] {
        match self {
            Backend::Legacy => &["iptables-legacy-restore", "ip6tables-legacy-restore"],
            Backend::IptablesNft => &["iptables-nft-restore", "ip6tables-nft-restore"],
            Backend::Nft => &["nft"],
        }
    }
}

/// A ruleset as its tool reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Rules {
    /// Its lines.
    pub(super) lines: Vec<String>,
}

impl Rules {
    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns the file.
    pub(super) fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// The transport of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// An echo request of ICMP or ICMPv6.
    Icmp,
}

/// What an endpoint says is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Complaint {
    /// Nobody listens.
    PortUnreachable,
    /// The host is gone.
    HostUnreachable,
    /// Too many hops.
    TimeExceeded,
}

/// The first packet of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Opening {
    /// Who sends it.
    pub(super) from: Place,
    /// The transport.
    pub(super) proto: Transport,
    /// The source address.
    pub(super) src: IpAddr,
    /// The source port, or the id of an echo request.
    pub(super) sport: u16,
    /// The destination address.
    pub(super) dst: IpAddr,
    /// The destination port.
    pub(super) dport: u16,
    /// TCP flags, as letters of `FSRPAU`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) flags: String,
    /// Hops.
    pub(super) ttl: u8,
    /// The TOS byte.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) tos: u8,
    /// Bytes of data.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(super) data: u32,
    /// The mark, of a packet of the node.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(super) mark: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u8) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_none(number: &u32) -> bool {
    *number == 0
}

/// One packet of a case. Steps are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Step {
    /// A flow begins.
    Open(Opening),
    /// Whoever got the packet of step `to` answers it; nothing if nobody did.
    Answer {
        /// The step.
        to: usize,
        /// TCP flags.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        flags: String,
    },
    /// Whoever sent the packet of step `of` sends another one of that flow.
    Again {
        /// The step.
        of: usize,
        /// TCP flags.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        flags: String,
    },
    /// Whoever got the packet of step `about` answers by an ICMP error; nothing if nobody did.
    Complain {
        /// The step.
        about: usize,
        /// What is wrong.
        kind: Complaint,
        /// Who complains, if not the receiver itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<IpAddr>,
    },
}

impl Step {
    /// Returns the step that this one refers to.
    pub(super) fn refers_to(&self) -> Option<usize> {
        match self {
            Step::Open(_) => None,
            Step::Answer { to: step, .. }
            | Step::Again { of: step, .. }
            | Step::Complain { about: step, .. } => Some(*step),
        }
    }

    /// Sets the step that this one refers to.
    pub(super) fn refer_to(&mut self, new: usize) {
        match self {
            Step::Open(_) => {}
            Step::Answer { to: step, .. }
            | Step::Again { of: step, .. }
            | Step::Complain { about: step, .. } => *step = new,
        }
    }
}

/// Many flows that differ in nothing but their port: what becomes of them must follow the
/// probabilities of the rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shares {
    /// The first of them.
    pub(super) flow: Opening,
    /// How many.
    pub(super) count: u16,
}

/// A case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Case {
    /// Where it comes from.
    pub(super) name: String,
    /// Who loads its rules.
    pub(super) backend: Backend,
    /// The node.
    pub(super) settings: Settings,
    /// ipsets that rules name, as `ipset restore` reads them.
    #[serde(default, skip_serializing_if = "Rules::is_empty")]
    pub(super) sets: Rules,
    /// The rules.
    pub(super) rules: Rules,
    /// Rules for `nft -f` that stand beside those of iptables.
    #[serde(default, skip_serializing_if = "Rules::is_empty")]
    pub(super) beside: Rules,
    /// Packets, one after the other.
    pub(super) steps: Vec<Step>,
    /// Many packets at once, before all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shares: Option<Shares>,
}

impl Case {
    /// Returns all texts that make its ruleset.
    pub(super) fn texts(&self) -> [&Rules; 3] {
        [&self.sets, &self.rules, &self.beside]
    }

    /// Returns all texts that make its ruleset, to change them.
    pub(super) fn texts_mut(&mut self) -> [&mut Rules; 3] {
        [&mut self.sets, &mut self.rules, &mut self.beside]
    }
}

/// Returns the flags of a text.
pub(super) fn flags(text: &str) -> TcpFlags {
    text.chars().fold(TcpFlags::NONE, |all, letter| {
        all | match letter {
            'F' => TcpFlags::FIN,
            'S' => TcpFlags::SYN,
            'R' => TcpFlags::RST,
            'P' => TcpFlags::PSH,
            'A' => TcpFlags::ACK,
            'U' => TcpFlags::URG,
            _ => TcpFlags::NONE,
        }
    })
}
