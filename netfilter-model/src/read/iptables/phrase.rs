//! The words in which a listing says what matches and targets do.

mod target;

use std::borrow::Cow;

use super::command::Trouble;
use super::matches::CHUNKS;
use super::options::{self, Given, Instance, MATCHES};
use target::target;

/// The words behind a rule's columns.
pub(super) struct Phrases<'t> {
    text: &'t str,
    /// Where the next word begins.
    at: usize,
    /// The name in the target's column.
    target: Option<&'t str>,
    line: u32,
}

/// What the words say.
#[derive(Default)]
pub(super) struct Said<'t> {
    pub(super) matches: Vec<Instance<'t>>,
    /// The target's options.
    pub(super) target: Vec<Given<'t>>,
    pub(super) target_raw: Vec<&'t str>,
    pub(super) goto: bool,
    /// What is not understood.
    pub(super) unknown: String,
    /// What is not said and was assumed.
    pub(super) assumed: Vec<Trouble>,
}

impl<'t> Phrases<'t> {
    pub(super) fn new(text: &'t str, target: Option<&'t str>, line: u32) -> Phrases<'t> {
        Phrases { text, at: 0, target, line }
    }

    fn rest(&self) -> &'t str {
        self.text[self.at..].trim_start()
    }

    fn peek(&self) -> Option<&'t str> {
        self.rest().split_whitespace().next()
    }

    fn next(&mut self) -> Option<&'t str> {
        let word = self.peek()?;
        self.at = self.text.len() - self.rest().len() + word.len();
        Some(word)
    }

    /// Takes words if they come next.
    fn take(&mut self, words: &str) -> bool {
        let start = self.at;
        for word in words.split(' ') {
            if self.next() != Some(word) {
                self.at = start;
                return false;
            }
        }
        true
    }

    /// Takes a word and the one behind it, if it comes next.
    fn value(&mut self, word: &str) -> Option<&'t str> {
        let start = self.at;
        let value = if self.take(word) { self.next() } else { None };
        if value.is_none() {
            self.at = start;
        }
        value
    }

    /// Takes a word with a `!` before it, apart or not.
    fn perhaps_not(&mut self) -> Option<(bool, &'t str)> {
        if self.take("!") {
            return Some((true, self.next()?));
        }
        let word = self.next()?;
        Some(match word.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, word),
        })
    }

    /// Takes a text in quotes, or a word.
    fn quoted(&mut self) -> Option<&'t str> {
        let rest = self.rest();
        let Some(inside) = rest.strip_prefix(['"', '`']) else {
            return self.next();
        };
        // The text itself may hold quotes: it ends with the last one.
        let end = inside.rfind(['"', '\''])?;
        self.at = self.text.len() - rest.len() + 1 + end + 1;
        Some(&inside[..end])
    }
}

fn given<'t>(key: &'static str, invert: bool, value: impl Into<Cow<'t, str>>) -> Given<'t> {
    Given { key, invert, values: [value.into(), Cow::Borrowed("")] }
}

fn pair<'t>(key: &'static str, invert: bool, first: &'t str, second: &'t str) -> Given<'t> {
    Given { key, invert, values: [first.into(), second.into()] }
}

/// Reads what the words say.
pub(super) fn read<'t>(phrases: &mut Phrases<'t>) -> Said<'t> {
    let mut said = Said::default();
    while phrases.peek().is_some() {
        let start = phrases.at;
        if phrases.take("[goto]") {
            said.goto = true;
            continue;
        }
        if let Some(mut instance) = condition(phrases, &mut said.assumed) {
            if instance.raw.is_empty() {
                instance.raw.push(phrases.text[start..phrases.at].trim());
            }
            said.matches.push(instance);
            continue;
        }
        phrases.at = start;
        if let Some(options) = target(phrases) {
            let text = phrases.text[start..phrases.at].trim();
            said.target_raw.push(match text {
                "CHECKSUM fill" => "--checksum-fill",
                text => text,
            });
            said.target.extend(options);
            continue;
        }
        // What follows may belong to it.
        phrases.at = phrases.text.len();
        said.unknown = phrases.text[start..].trim().to_owned();
    }
    said
}

fn instance<'t>(name: &'static str, given: Vec<Given<'t>>) -> Option<Instance<'t>> {
    let mut instance = Instance::new(name.into(), options::find(MATCHES, name));
    instance.given = given;
    Some(instance)
}

/// Reads one match.
fn condition<'t>(of: &mut Phrases<'t>, assumed: &mut Vec<Trouble>) -> Option<Instance<'t>> {
    let start = of.at;
    let not = of.take("!");
    let word = of.next()?;
    match word {
        "/*" => {
            let rest = &of.text[of.at..];
            let end = rest.find(" */")?;
            of.at += end + 3;
            instance(
                "comment",
                vec![given("comment", not, rest[..end].strip_prefix(' ').unwrap_or(""))],
            )
        }
        "tcp" | "udp" | "sctp" => ports(of, word),
        "multiport" => {
            let key = match of.next()? {
                "sports" => "sports",
                "dports" => "dports",
                "ports" => "ports",
                _ => return None,
            };
            let (not, value) = of.perhaps_not()?;
            instance("multiport", vec![given(key, not, value)])
        }
        "icmptype" | "ipv6-icmptype" | "icmp" | "ipv6-icmp" => icmp(of, word),
        "state" => instance("state", vec![given("state", not, of.next()?)]),
        _ if word.starts_with("ct") => {
            of.at = start;
            conntrack(of)
        }
        "mark" | "MARK" | "connmark" | "CONNMARK" if of.take("match") => {
            let (not, value) = of.perhaps_not()?;
            let name = if word.len() == 4 { "mark" } else { "connmark" };
            instance(name, vec![given("mark", not, value)])
        }
        "ADDRTYPE" if of.take("match") => addrtype(of),
        "statistic" if of.take("mode") => statistic(of),
        "recent:" => recent(of, not),
        "limit:" => limit(of, assumed),
        "MAC" => {
            let (not, value) = of.perhaps_not()?;
            instance("mac", vec![given("mac-source", not, value)])
        }
        "source" | "destination" if of.take("IP range") => {
            let key = if word == "source" { "src-range" } else { "dst-range" };
            let (not, value) = of.perhaps_not()?;
            let mut all = vec![given(key, not, value)];
            if word == "source" && of.take("destination IP range") {
                let (not, value) = of.perhaps_not()?;
                all.push(given("dst-range", not, value));
            }
            instance("iprange", all)
        }
        "owner" => {
            of.at = start;
            owner(of)
        }
        "PKTTYPE" => {
            let not = of.next()? == "!=";
            instance("pkttype", vec![given("pkt-type", not, of.next()?)])
        }
        "TTL" | "HL" if of.take("match") => {
            of.next()?;
            let (key, not) = match of.next()? {
                "==" => ("ttl-eq", false),
                "!=" => ("ttl-eq", true),
                "<" => ("ttl-lt", false),
                ">" => ("ttl-gt", false),
                _ => return None,
            };
            let name = if word == "TTL" { "ttl" } else { "hl" };
            instance(name, vec![given(key, not, of.next()?)])
        }
        "length" => {
            let (not, value) = of.perhaps_not()?;
            instance("length", vec![given("length", not, value)])
        }
        "tos" => {
            // Some versions leave the blank behind `match` out.
            let word = of.next()?.strip_prefix("match")?;
            let value = if word.is_empty() { of.next()? } else { word };
            let (value, not) = match value.strip_prefix('!') {
                Some("") => (of.next()?, true),
                Some(value) => (value, true),
                None => (value, false),
            };
            instance("tos", vec![given("tos", not, value)])
        }
        "DSCP" if of.take("match") => {
            let (not, value) = of.perhaps_not()?;
            instance("dscp", vec![given("dscp", not, value)])
        }
        "tcpmss" if of.take("match") => {
            let (not, value) = of.perhaps_not()?;
            instance("tcpmss", vec![given("mss", not, value)])
        }
        "PHYSDEV" if of.take("match") => physdev(of),
        "match-set" => {
            let mut all = vec![pair("match-set", not, of.next()?, of.next()?)];
            if of.take("return-nomatch") {
                all.push(given("return-nomatch", false, ""));
            }
            instance("set", all)
        }
        "helper" if of.take("match") => {
            let not = of.take("!");
            let name = of.quoted()?;
            let mut helper = instance("helper", vec![given("helper", not, name)])?;
            helper.raw.extend(not.then_some("!").into_iter().chain(["--helper", name]));
            Some(helper)
        }
        "policy" if of.take("match") => {
            let dir = of.value("dir")?;
            let pol = of.value("pol")?;
            let all = vec![given("dir", false, dir), given("pol", false, pol)];
            let mut policy = instance("policy", all)?;
            policy.raw.extend(["--dir", dir, "--pol", pol]);
            Some(policy)
        }
        "rpfilter" => {
            let mut all = Vec::new();
            for key in ["loose", "validmark", "accept-local", "invert"] {
                if of.take(key) {
                    all.push(given(key, false, ""));
                }
            }
            instance("rpfilter", all)
        }
        _ => None,
    }
}

fn ports<'t>(of: &mut Phrases<'t>, name: &str) -> Option<Instance<'t>> {
    let mut all = Vec::new();
    while let Some(word) = of.peek() {
        let (key, value) = match word.split_once([':', '=']) {
            Some(("spt" | "spts", value)) => ("sport", value),
            Some(("dpt" | "dpts", value)) => ("dport", value),
            Some(("option", value)) if name == "tcp" => ("tcp-option", value),
            Some(("flags", value)) if name == "tcp" => ("tcp-flags", value),
            _ => break,
        };
        of.next();
        let (value, not) = match value.strip_prefix('!') {
            Some(value) => (value, true),
            None => (value, false),
        };
        if key != "tcp-flags" {
            all.push(given(key, not, value));
            continue;
        }
        let (mask, set) = value.split_once('/')?;
        let values = [flags(mask)?, flags(set)?];
        all.push(Given { key, invert: not, values });
    }
    if name == "sctp" {
        all.extend(chunks(of)?);
        return instance("sctp", all);
    }
    instance(if name == "tcp" { "tcp" } else { "udp" }, all)
}

/// Reads the types of chunks that follow the ports of SCTP: names, or numbers with `-n`.
fn chunks<'t>(of: &mut Phrases<'t>) -> Option<Option<Given<'t>>> {
    let word = of.peek().unwrap_or("");
    let (how, not) = match word.strip_prefix('!') {
        Some(how) => (how, true),
        None => (word, false),
    };
    if !["all", "any", "only"].contains(&how) {
        return Some(None);
    }
    of.next();
    let name = |text: &'t str| -> Option<&'t str> {
        let Some(hex) = text.strip_prefix("0x") else { return Some(text) };
        // The first 15 are numbered by their places.
        CHUNKS[..15].get(usize::from_str_radix(hex, 16).ok()?).copied()
    };
    let names: Option<Vec<&str>> = of.next()?.split(',').map(name).collect();
    let values = [how.into(), names?.join(",").into()];
    Some(Some(Given { key: "chunk-types", invert: not, values }))
}

/// Returns the names of flags that may be given as a number.
fn flags(text: &str) -> Option<Cow<'_, str>> {
    let Some(hex) = text.strip_prefix("0x") else {
        return Some(text.into());
    };
    let flags = crate::packet::TcpFlags::from_bits(u8::from_str_radix(hex, 16).ok()?);
    let names: Vec<&str> = flags.names().collect();
    Some(if names.is_empty() { "NONE".into() } else { names.join(",").into() })
}

fn icmp<'t>(of: &mut Phrases<'t>, word: &str) -> Option<Instance<'t>> {
    let name = if word.starts_with("icmp") { "icmp" } else { "icmp6" };
    let (not, first) = of.perhaps_not()?;
    // `icmptype 8 code 0`, `icmp !type 8`, `icmp type 8`, `icmp echo-request`
    let kind = if first == "type" { of.next()? } else { first };
    let value: Cow<'t, str> = match of.value("code") {
        Some(code) => format!("{kind}/{code}").into(),
        None => kind.into(),
    };
    instance(name, vec![given("icmp-type", not, value)])
}

fn conntrack<'t>(of: &mut Phrases<'t>) -> Option<Instance<'t>> {
    let known = options::find(MATCHES, "conntrack")?;
    let mut all = Vec::new();
    loop {
        let start = of.at;
        let not = of.take("!");
        let Some((_, key, _)) = of.next().and_then(|word| known.exact(word)) else {
            of.at = start;
            break;
        };
        all.push(given(key, not, of.next()?));
    }
    if all.is_empty() { None } else { instance("conntrack", all) }
}

fn addrtype<'t>(of: &mut Phrases<'t>) -> Option<Instance<'t>> {
    let mut all = Vec::new();
    loop {
        let key = match of.peek() {
            Some("src-type") => "src-type",
            Some("dst-type") => "dst-type",
            Some("limit-in") => "limit-iface-in",
            Some("limit-out") => "limit-iface-out",
            _ => break,
        };
        of.next();
        if key.starts_with("limit") {
            all.push(given(key, false, ""));
            continue;
        }
        let (not, value) = of.perhaps_not()?;
        all.push(given(key, not, value));
    }
    instance("addrtype", all)
}

fn statistic<'t>(of: &mut Phrases<'t>) -> Option<Instance<'t>> {
    let mode = of.next()?;
    let not = of.take("!");
    let mut all = vec![given("mode", false, mode)];
    match mode {
        "random" => all.push(given("probability", not, of.value("probability")?)),
        _ => {
            all.push(given("every", not, of.value("every")?));
            all.extend(of.value("packet").map(|packet| given("packet", false, packet)));
        }
    }
    instance("statistic", all)
}

fn recent<'t>(of: &mut Phrases<'t>, not: bool) -> Option<Instance<'t>> {
    let key = match of.next()? {
        "SET" => "set",
        "CHECK" => "rcheck",
        "UPDATE" => "update",
        "REMOVE" => "remove",
        _ => return None,
    };
    let mut all = vec![given(key, not, "")];
    all.extend(of.value("seconds:").map(|seconds| given("seconds", false, seconds)));
    if of.take("reap") {
        all.push(given("reap", false, ""));
    }
    all.extend(of.value("hit_count:").map(|count| given("hitcount", false, count)));
    if of.take("TTL-Match") {
        all.push(given("rttl", false, ""));
    }
    all.extend(of.value("name:").map(|name| given("name", false, name)));
    if of.value("side:") == Some("dest") {
        all.push(given("rdest", false, ""));
    }
    all.extend(of.value("mask:").map(|mask| given("mask", false, mask)));
    instance("recent", all)
}

fn limit<'t>(of: &mut Phrases<'t>, assumed: &mut Vec<Trouble>) -> Option<Instance<'t>> {
    if let Some(rate) = of.value("avg") {
        let mut all = vec![given("limit", false, rate)];
        all.extend(of.value("burst").map(|burst| given("limit-burst", false, burst)));
        return instance("limit", all);
    }
    let key = if of.take("up to") {
        "hashlimit-upto"
    } else if of.take("above") {
        "hashlimit-above"
    } else {
        return None;
    };
    let mut all = vec![given(key, false, of.next()?)];
    for (word, key) in [
        ("burst", "hashlimit-burst"),
        ("mode", "hashlimit-mode"),
        ("htable-size", "hashlimit-htable-size"),
        ("htable-max", "hashlimit-htable-max"),
        ("htable-gcinterval", "hashlimit-htable-gcinterval"),
        ("htable-expire", "hashlimit-htable-expire"),
        ("srcmask", "hashlimit-srcmask"),
        ("dstmask", "hashlimit-dstmask"),
    ] {
        all.extend(of.value(word).map(|value| given(key, false, value)));
    }
    all.push(given("hashlimit-name", false, format!("line-{}", of.line)));
    let problem = "a listing does not name the buckets of hashlimit";
    assumed.push((problem.to_owned(), Some("they are taken as this rule's own")));
    instance("hashlimit", all)
}

fn owner<'t>(of: &mut Phrases<'t>) -> Option<Instance<'t>> {
    let mut all = Vec::new();
    loop {
        let start = of.at;
        let not = of.take("!");
        if of.take("owner socket exists") {
            all.push(given("socket-exists", not, ""));
        } else if let Some(ids) = of.take("owner UID match").then(|| of.next()).flatten() {
            all.push(given("uid-owner", not, ids));
        } else if let Some(ids) = of.take("owner GID match").then(|| of.next()).flatten() {
            all.push(given("gid-owner", not, ids));
        } else if !not && of.take("incl. suppl. groups") {
            all.push(given("suppl-groups", false, ""));
        } else {
            of.at = start;
            break;
        }
    }
    if all.is_empty() { None } else { instance("owner", all) }
}

fn physdev<'t>(of: &mut Phrases<'t>) -> Option<Instance<'t>> {
    let known = options::find(MATCHES, "physdev")?;
    let mut all = Vec::new();
    loop {
        let start = of.at;
        let not = of.take("!");
        let name = of.next().and_then(|word| word.strip_prefix("--"));
        let Some((_, key, args)) = name.and_then(|name| known.exact(name)) else {
            of.at = start;
            break;
        };
        let value = if *args > 0 { of.next()? } else { "" };
        all.push(given(key, not, value));
    }
    instance("physdev", all)
}
