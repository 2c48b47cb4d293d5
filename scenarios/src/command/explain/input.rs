//! The files of the command line: what they are, and their lines.

use std::fs;
use std::io::{self, Read as _};

use flate2::read::MultiGzDecoder;

/// Longer texts are cut, with a message: nobody's rules are that long.
const LEN_MAX: u64 = 1 << 28;

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `iptables-save`, `iptables -S`, or commands of iptables.
    IptablesRules,
    /// `iptables -L`.
    IptablesListing,
    /// `nft list`.
    Nft,
    /// `ipset save` or `ipset -L`.
    Ipset,
    /// `ipvsadm -Ln` or `-Sn`.
    Ipvs,
    /// `conntrack -L`.
    Conntrack,
    /// A scenario of rulelag.
    Scenario,
}

impl Kind {
    /// Returns what such a text is called.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::IptablesRules => "the output of iptables-save",
            Kind::IptablesListing => "the output of iptables -L",
            Kind::Nft => "the output of nft list",
            Kind::Ipset => "the output of ipset",
            Kind::Ipvs => "the output of ipvsadm",
            Kind::Conntrack => "the output of conntrack -L",
            Kind::Scenario => "a scenario",
        }
    }
}

/// A text and where it comes from.
#[derive(Clone, Debug)]
pub(super) struct Input {
    /// Its name in messages.
    pub(super) name: String,
    /// The text.
    pub(super) text: String,
}

impl Input {
    /// Reads a file, or standard input for `-`; what is compressed by gzip is unpacked.
    pub(super) fn open(name: &str) -> Result<Input, String> {
        let mut bytes = Vec::new();
        let (read, name) = if name == "-" {
            (io::stdin().lock().take(LEN_MAX).read_to_end(&mut bytes), "stdin")
        } else {
            let read =
                fs::File::open(name).and_then(|file| file.take(LEN_MAX).read_to_end(&mut bytes));
            (read, name)
        };
        read.map_err(|error| format!("cannot read {name}: {error}"))?;
        if bytes.starts_with(&[0x1f, 0x8b]) {
            let mut plain = Vec::new();
            let unpacked = MultiGzDecoder::new(&bytes[..]).take(LEN_MAX).read_to_end(&mut plain);
            // A file that was cut off is read as far as it goes.
            if let Err(error) = unpacked
                && plain.is_empty()
            {
                return Err(format!("cannot unpack {name}: {error}"));
            }
            bytes = plain;
        }
        Ok(Input { name: name.to_owned(), text: String::from_utf8_lossy(&bytes).into_owned() })
    }

    /// Returns what the text is, told from its first lines that say so.
    pub(super) fn kind(&self) -> Option<Kind> {
        const LOOK_AT: usize = 5_000;
        self.text.lines().take(LOOK_AT).find_map(kind_of_line)
    }
}

fn kind_of_line(line: &str) -> Option<Kind> {
    let line = line.trim_start_matches('\u{feff}').trim();
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let second = words.next().unwrap_or_default();
    let program = |name: &str| {
        let known = |word: &str| word.rsplit('/').next().is_some_and(|word| word.starts_with(name));
        // A command, or one behind a pasted prompt.
        let prompt = line.contains(['#', '$', '%', '>']);
        known(first) || (prompt && line.split_whitespace().skip(1).take(3).any(known))
    };
    let listing = || {
        line.split_whitespace().any(|word| {
            word == "--list"
                || (word.starts_with('-')
                    && !word.starts_with("--")
                    && word.contains('L')
                    && !word.contains('S'))
        })
    };
    match first {
        "*raw" | "*mangle" | "*nat" | "*filter" | "*security" | "-P" | "-N" => {
            return Some(Kind::IptablesRules);
        }
        "Chain" if line.contains('(') => return Some(Kind::IptablesListing),
        "table" if matches!(second, "ip" | "ip6" | "inet" | "arp" | "bridge" | "netdev") => {
            return Some(Kind::Nft);
        }
        "create" | "Name:" => return Some(Kind::Ipset),
        "Prot" | "TCP" | "UDP" | "SCTP" | "FWM" if line.contains(':') => return Some(Kind::Ipvs),
        "-A" if matches!(second, "-t" | "-u" | "-f" | "--tcp-service" | "--udp-service") => {
            return Some(Kind::Ipvs);
        }
        "-A" | "-I" => return Some(Kind::IptablesRules),
        "apiVersion:" => return Some(Kind::Scenario),
        _ => {}
    }
    if line.contains("IP Virtual Server") || program("ipvsadm") {
        Some(Kind::Ipvs)
    } else if line.contains(" src=") && line.contains(" dst=") {
        Some(Kind::Conntrack)
    } else if line.contains("tables-save") {
        Some(Kind::IptablesRules)
    } else if program("iptables") || program("ip6tables") {
        Some(if listing() { Kind::IptablesListing } else { Kind::IptablesRules })
    } else if first.starts_with("[") && second == "-A" {
        Some(Kind::IptablesRules)
    } else if first == "flush" && second == "ruleset" || program("nft") {
        Some(Kind::Nft)
    } else if program("ipset") {
        Some(Kind::Ipset)
    } else if program("conntrack") {
        Some(Kind::Conntrack)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_tell_what_they_are() {
        let table = [
            ("# Generated by iptables-save v1.8.9 (nf_tables)\n*nat", Some(Kind::IptablesRules)),
            ("*filter\n:INPUT ACCEPT [0:0]", Some(Kind::IptablesRules)),
            ("-P INPUT ACCEPT\n", Some(Kind::IptablesRules)),
            ("[3:180] -A INPUT -j DROP", Some(Kind::IptablesRules)),
            ("iptables -t nat -A PREROUTING -j X", Some(Kind::IptablesRules)),
            ("Chain INPUT (policy ACCEPT)\n", Some(Kind::IptablesListing)),
            ("root@node:~# iptables -t nat -nvL\n", Some(Kind::IptablesListing)),
            ("table inet filter {\n", Some(Kind::Nft)),
            ("\n\n  table ip kube-proxy { # handle 1\n", Some(Kind::Nft)),
            ("create KUBE-CLUSTER-IP hash:ip,port family inet", Some(Kind::Ipset)),
            ("Name: KUBE-CLUSTER-IP\nType: hash:ip,port", Some(Kind::Ipset)),
            ("IP Virtual Server version 1.2.1 (size=4096)\n", Some(Kind::Ipvs)),
            ("-A -t 10.96.0.10:53 -s rr", Some(Kind::Ipvs)),
            (
                "tcp      6 117 SYN_SENT src=10.0.0.1 dst=10.0.0.2 sport=1 dport=2",
                Some(Kind::Conntrack),
            ),
            ("apiVersion: rulelag/v1\n", Some(Kind::Scenario)),
            ("# a comment\napiVersion: rulelag/v1\n", Some(Kind::Scenario)),
            ("hello\n", None),
            ("", None),
        ];
        for (text, kind) in table {
            let input = Input { name: String::new(), text: text.to_owned() };
            assert_eq!(input.kind(), kind, "{text:?}");
        }
    }
}
