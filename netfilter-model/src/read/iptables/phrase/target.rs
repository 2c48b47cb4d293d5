//! What targets say of themselves.

use super::{Phrases, given, pair};
use crate::read::iptables::options::{self, Given};

/// Reads what the target says of itself, a phrase at a time.
pub(super) fn target<'t>(of: &mut Phrases<'t>) -> Option<Vec<Given<'t>>> {
    let name = of.target?;
    let word = of.next()?;
    let one = |key, value: &'t str| Some(vec![given(key, false, value)]);
    if let Some(to) = word.strip_prefix("to:") {
        return match name {
            "DNAT" => one("to-destination", to),
            "SNAT" => one("to-source", to),
            "NETMAP" => one("to", to),
            _ => None,
        };
    }
    match (name, word) {
        ("DNAT" | "SNAT" | "MASQUERADE" | "REDIRECT", "random") => one("random", ""),
        ("DNAT" | "SNAT" | "MASQUERADE" | "REDIRECT", "random-fully") => one("random-fully", ""),
        ("DNAT" | "SNAT" | "MASQUERADE" | "REDIRECT", "persistent") => one("persistent", ""),
        ("MASQUERADE", "masq") => one("to-ports", of.value("ports:")?),
        ("REDIRECT", "redir") => one("to-ports", of.value("ports")?),
        ("REJECT", "reject-with") => one("reject-with", of.next()?),
        ("MARK" | "CONNMARK", "MARK" | "CONNMARK") => mark(of),
        ("CT", "NOTRACK") => one("alias", ""),
        ("NOTRACK", _) => None,
        ("CT", "CT") => ct(of),
        ("TPROXY", "TPROXY") => {
            let to = of.value("redirect")?;
            let (address, port) = to.rsplit_once(':')?;
            let mark = of.value("mark")?;
            let address = address.trim_start_matches('[').trim_end_matches(']');
            Some(vec![
                given("on-ip", false, address),
                given("on-port", false, port),
                given("tproxy-mark", false, mark),
            ])
        }
        ("TTL", "TTL") | ("HL", "HL") => match of.next()? {
            "set" if of.take("to") => one("ttl-set", of.next()?),
            "increment" if of.take("by") => one("ttl-inc", of.next()?),
            "decrement" if of.take("by") => one("ttl-dec", of.next()?),
            _ => None,
        },
        ("TOS", "TOS") => match of.next()? {
            "set" => one("set-tos", of.next()?),
            "and" => one("and-tos", of.next()?),
            "or" => one("or-tos", of.next()?),
            "xor" => one("xor-tos", of.next()?),
            _ => None,
        },
        ("DSCP", "DSCP") => one("set-dscp", of.value("set")?),
        ("TCPMSS", "TCPMSS") => {
            if of.take("clamp to PMTU") {
                return one("clamp-mss-to-pmtu", "");
            }
            one("set-mss", of.value("set")?)
        }
        ("LOG", "LOG") => log(of),
        ("NFLOG", word) => {
            let known = options::find(options::TARGETS, "NFLOG")?;
            let (_, key, _) = known.exact(word)?;
            one(key, of.quoted()?)
        }
        ("SET", "add-set") => Some(vec![pair("add-set", false, of.next()?, of.next()?)]),
        ("SET", "del-set") => Some(vec![pair("del-set", false, of.next()?, of.next()?)]),
        ("SET", "exist") => one("exist", ""),
        ("SET", "timeout") => one("timeout", of.next()?),
        _ if options::CONTINUING.contains(&name) || options::UNMODELLED_TARGETS.contains(&name) => {
            of.at = of.text.len();
            Some(Vec::new())
        }
        _ => None,
    }
}

fn mark<'t>(of: &mut Phrases<'t>) -> Option<Vec<Given<'t>>> {
    let key = match of.next()? {
        "set" | "xset" => "set-xmark",
        "or" => "or-mark",
        "and" => "and-mark",
        "xor" => "xor-mark",
        action @ ("save" | "restore") => {
            let key = if action == "save" { "save-mark" } else { "restore-mark" };
            let mut all = vec![given(key, false, "")];
            for (word, key) in [("mask", "mask"), ("nfmask", "nfmask"), ("ctmask", "ctmask")] {
                let mask = of.value(word).map(|mask| mask.trim_start_matches('~'));
                all.extend(mask.map(|mask| given(key, false, mask)));
            }
            return Some(all);
        }
        _ => return None,
    };
    Some(vec![given(key, false, of.next()?)])
}

fn ct<'t>(of: &mut Phrases<'t>) -> Option<Vec<Given<'t>>> {
    let known = options::find(options::TARGETS, "CT")?;
    let mut all = Vec::new();
    while let Some((_, key, args)) = of.peek().and_then(|word| known.exact(word)) {
        of.next();
        let value = if *args > 0 { of.next()? } else { "" };
        all.push(given(key, false, value));
    }
    Some(all)
}

fn log<'t>(of: &mut Phrases<'t>) -> Option<Vec<Given<'t>>> {
    const FLAGS: [(&str, &str, u8); 5] = [
        ("tcp-sequence", "log-tcp-sequence", 1),
        ("tcp-options", "log-tcp-options", 2),
        ("ip-options", "log-ip-options", 4),
        ("uid", "log-uid", 8),
        ("macdecode", "log-macdecode", 32),
    ];
    let mut all = Vec::new();
    if let Some(flags) = of.value("flags") {
        let flags: u8 = flags.parse().ok()?;
        let set = FLAGS.iter().filter(|(.., bit)| flags & bit != 0);
        all.extend(set.map(|(_, key, _)| given(key, false, "")));
    }
    all.extend(of.value("level").map(|level| given("log-level", false, level)));
    while let Some((_, key, _)) =
        of.peek().and_then(|word| FLAGS.iter().find(|(name, ..)| *name == word))
    {
        of.next();
        all.push(given(key, false, ""));
    }
    if of.take("prefix") {
        all.push(given("log-prefix", false, of.quoted()?));
    }
    Some(all)
}
