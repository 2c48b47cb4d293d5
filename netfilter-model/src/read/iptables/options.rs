//! Which options belong to which match and target, and what was given of them.

use std::borrow::Cow;

use super::value::Refused;
use super::words::Word;

/// An option: how it is written, what it means here, how many words follow.
pub(super) type Spec = (&'static str, &'static str, u8);

/// A match or target by name with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extension {
    pub(super) name: &'static str,
    pub(super) options: &'static [Spec],
}

macro_rules! extensions {
    ($($name:literal: $($spec:literal $(= $key:literal)? $args:literal),* ;)*) => {
        &[$(Extension { name: $name, options: &[$(spec($spec, &[$($key)?], $args)),*] }),*]
    };
}

/// Returns an option; what it means is its own name if nothing else is said.
const fn spec(name: &'static str, key: &[&'static str], args: u8) -> Spec {
    if key.is_empty() { (name, name, args) } else { (name, key[0], args) }
}

/// Matches whose options are understood.
pub(super) const MATCHES: &[Extension] = extensions! {
    "tcp": "sport" 1, "source-port"="sport" 1, "dport" 1, "destination-port"="dport" 1,
        "syn" 0, "tcp-flags" 2, "tcp-option" 1;
    "udp": "sport" 1, "source-port"="sport" 1, "dport" 1, "destination-port"="dport" 1;
    "sctp": "sport" 1, "source-port"="sport" 1, "dport" 1, "destination-port"="dport" 1,
        "chunk-types" 2;
    "icmp": "icmp-type" 1;
    "icmp6": "icmpv6-type"="icmp-type" 1;
    "multiport": "sports" 1, "source-ports"="sports" 1, "dports" 1, "destination-ports"="dports" 1,
        "ports" 1;
    "comment": "comment" 1;
    "mark": "mark" 1;
    "connmark": "mark" 1;
    "conntrack": "ctstate" 1, "ctproto" 1, "ctorigsrc" 1, "ctorigdst" 1, "ctreplsrc" 1,
        "ctrepldst" 1, "ctorigsrcport" 1, "ctorigdstport" 1, "ctreplsrcport" 1, "ctrepldstport" 1,
        "ctstatus" 1, "ctexpire" 1, "ctdir" 1;
    "state": "state" 1;
    "addrtype": "src-type" 1, "dst-type" 1, "limit-iface-in" 0, "limit-iface-out" 0;
    "statistic": "mode" 1, "probability" 1, "every" 1, "packet" 1;
    "recent": "set" 0, "rcheck" 0, "update" 0, "remove" 0, "seconds" 1, "reap" 0, "hitcount" 1,
        "rttl" 0, "name" 1, "mask" 1, "rsource" 0, "rdest" 0;
    "set": "match-set" 2, "set"="match-set" 2, "return-nomatch" 0, "update-counters" 0,
        "update-subcounters" 0, "packets-eq" 1, "packets-lt" 1, "packets-gt" 1, "bytes-eq" 1,
        "bytes-lt" 1, "bytes-gt" 1;
    "physdev": "physdev-is-in" 0, "physdev-in" 1, "physdev-is-out" 0, "physdev-out" 1,
        "physdev-is-bridged" 0;
    "limit": "limit" 1, "limit-burst" 1;
    "hashlimit": "hashlimit-upto" 1, "hashlimit"="hashlimit-upto" 1, "hashlimit-above" 1,
        "hashlimit-burst" 1, "hashlimit-mode" 1, "hashlimit-name" 1, "hashlimit-htable-size" 1,
        "hashlimit-htable-max" 1, "hashlimit-htable-gcinterval" 1, "hashlimit-htable-expire" 1,
        "hashlimit-srcmask" 1, "hashlimit-dstmask" 1;
    "mac": "mac-source" 1;
    "iprange": "src-range" 1, "dst-range" 1;
    "owner": "uid-owner" 1, "gid-owner" 1, "socket-exists" 0, "suppl-groups" 0;
    "pkttype": "pkt-type" 1;
    "ttl": "ttl-eq" 1, "ttl"="ttl-eq" 1, "ttl-lt" 1, "ttl-gt" 1;
    "hl": "hl-eq"="ttl-eq" 1, "hl"="ttl-eq" 1, "hl-lt"="ttl-lt" 1, "hl-gt"="ttl-gt" 1;
    "length": "length" 1;
    "dscp": "dscp" 1, "dscp-class" 1;
    "tos": "tos" 1;
    "tcpmss": "mss" 1;
    "rpfilter": "loose" 0, "validmark" 0, "accept-local" 0, "invert" 0;
    "helper": "helper" 1;
    "policy": "dir" 1, "pol" 1, "strict" 0, "next" 0, "reqid" 1, "spi" 1, "mode" 1,
        "tunnel-src" 1, "tunnel-dst" 1;
};

/// Targets whose options are understood.
pub(super) const TARGETS: &[Extension] = extensions! {
    "ACCEPT":;
    "DROP":;
    "RETURN":;
    "REJECT": "reject-with" 1;
    "MARK": "set-mark" 1, "set-xmark" 1, "or-mark" 1, "and-mark" 1, "xor-mark" 1;
    "CONNMARK": "set-mark" 1, "set-xmark" 1, "or-mark" 1, "and-mark" 1, "xor-mark" 1,
        "save-mark" 0, "restore-mark" 0, "mask" 1, "nfmask" 1, "ctmask" 1;
    "DNAT": "to-destination" 1, "random" 0, "persistent" 0;
    "SNAT": "to-source" 1, "random" 0, "random-fully" 0, "persistent" 0;
    "MASQUERADE": "to-ports" 1, "random" 0, "random-fully" 0;
    "REDIRECT": "to-ports" 1, "random" 0;
    "NETMAP": "to" 1;
    "NOTRACK":;
    "CT": "notrack" 0, "helper" 1, "timeout" 1, "ctevents" 1, "expevents" 1, "zone" 1,
        "zone-orig" 1, "zone-reply" 1;
    "LOG": "log-prefix" 1, "log-level" 1, "log-tcp-sequence" 0, "log-tcp-options" 0,
        "log-ip-options" 0, "log-uid" 0, "log-macdecode" 0;
    "NFLOG": "nflog-prefix" 1, "nflog-group" 1, "nflog-range" 1, "nflog-size" 1,
        "nflog-threshold" 1;
    "SET": "add-set" 2, "del-set" 2, "map-set" 2, "exist" 0, "timeout" 1, "map-mark" 0,
        "map-prio" 0, "map-queue" 0;
    "TPROXY": "on-port" 1, "on-ip" 1, "tproxy-mark" 1;
    "TOS": "set-tos" 1, "and-tos" 1, "or-tos" 1, "xor-tos" 1;
    "DSCP": "set-dscp" 1, "set-dscp-class" 1;
    "TTL": "ttl-set" 1, "ttl-inc" 1, "ttl-dec" 1;
    "HL": "hl-set"="ttl-set" 1, "hl-inc"="ttl-inc" 1, "hl-dec"="ttl-dec" 1;
    "TCPMSS": "set-mss" 1, "clamp-mss-to-pmtu" 0;
};

/// Targets that let the next rule run, of which nothing but that matters here.
pub(super) const CONTINUING: [&str; 13] = [
    "TRACE",
    "CHECKSUM",
    "CLASSIFY",
    "ECN",
    "TEE",
    "IDLETIMER",
    "AUDIT",
    "SECMARK",
    "CONNSECMARK",
    "LED",
    "RATEEST",
    "ULOG",
    "TCPOPTSTRIP",
];

/// Targets whose verdict cannot be told.
pub(super) const UNMODELLED_TARGETS: [&str; 9] =
    ["QUEUE", "NFQUEUE", "SYNPROXY", "HMARK", "CLUSTERIP", "SAME", "MIRROR", "DNPT", "SNPT"];

/// Matches that are known and not modelled.
pub(super) const UNMODELLED_MATCHES: [&str; 29] = [
    "ah",
    "bpf",
    "cgroup",
    "cluster",
    "connbytes",
    "connlabel",
    "connlimit",
    "cpu",
    "dccp",
    "devgroup",
    "dst",
    "ecn",
    "esp",
    "eui64",
    "frag",
    "hbh",
    "ipv6header",
    "ipvs",
    "l2tp",
    "mh",
    "nfacct",
    "osf",
    "quota",
    "realm",
    "rt",
    "socket",
    "string",
    "time",
    "u32",
];

/// Returns the extension of a name.
pub(super) fn find(extensions: &'static [Extension], name: &str) -> Option<&'static Extension> {
    extensions.iter().find(|extension| extension.name == name)
}

impl Extension {
    /// Returns the option that is written so in full.
    pub(super) fn exact(&self, name: &str) -> Option<&'static Spec> {
        self.options.iter().find(|(option, ..)| *option == name)
    }

    /// Returns the option that begins so, if all that do mean the same.
    pub(super) fn beginning(&self, name: &str) -> Option<&'static Spec> {
        let mut found = self.options.iter().filter(|(option, ..)| option.starts_with(name));
        let first = found.next()?;
        found.all(|(_, key, _)| *key == first.1).then_some(first)
    }
}

/// An option that was given.
#[derive(Clone, Debug)]
pub(super) struct Given<'t> {
    /// What it means.
    pub(super) key: &'static str,
    /// With a `!` before it.
    pub(super) invert: bool,
    /// The words behind it.
    pub(super) values: [Cow<'t, str>; 2],
}

/// A match or target with what was given to it.
#[derive(Clone, Debug)]
pub(super) struct Instance<'t> {
    /// What follows `-m` or `-j`.
    pub(super) name: Cow<'t, str>,
    /// Its options, if they are known.
    pub(super) extension: Option<&'static Extension>,
    /// Those that were given.
    pub(super) given: Vec<Given<'t>>,
    /// Everything that was given, as written.
    pub(super) raw: Vec<&'t str>,
}

impl<'t> Instance<'t> {
    pub(super) fn new(name: Cow<'t, str>, extension: Option<&'static Extension>) -> Instance<'t> {
        Instance { name, extension, given: Vec::new(), raw: Vec::new() }
    }

    /// Keeps words as they are written.
    pub(super) fn keep(&mut self, words: &[Word<'t>]) {
        self.raw.extend(words.iter().map(|word| word.raw));
    }

    /// Returns what was given, as written.
    pub(super) fn raw_text(&self) -> String {
        self.raw.join(" ")
    }

    /// Returns an option that may be given once.
    pub(super) fn get(&self, key: &str) -> Result<Option<&Given<'t>>, Refused> {
        let mut found = self.given.iter().filter(|given| given.key == key);
        let first = found.next();
        if found.next().is_some() {
            return Err(format!("--{key} can be given only once"));
        }
        Ok(first)
    }

    /// Returns whether an option without value is given; not negated, if it cannot be.
    pub(super) fn flag(&self, key: &str) -> Result<bool, Refused> {
        self.plain(key).map(|given| given.is_some())
    }

    /// Returns an option that cannot be negated.
    pub(super) fn plain(&self, key: &str) -> Result<Option<&Given<'t>>, Refused> {
        match self.get(key)? {
            Some(given) if given.invert => Err(format!("--{key} cannot be negated")),
            given => Ok(given),
        }
    }

    /// Returns the value of an option that cannot be negated.
    pub(super) fn value(&self, key: &str) -> Result<Option<&str>, Refused> {
        Ok(self.plain(key)?.map(|given| &*given.values[0]))
    }

    /// Returns the value of an option that cannot be negated, parsed.
    pub(super) fn parsed<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, Refused>,
    ) -> Result<Option<T>, Refused> {
        self.value(key)?.map(parse).transpose()
    }
}
