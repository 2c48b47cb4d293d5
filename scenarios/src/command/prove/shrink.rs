//! Makes a failing case small.

use super::case::{Case, Step};
use super::place::Settings;

/// Returns the smallest case found for which `fails` still holds, having asked at most so often.
///
/// Rules go first, in ever smaller groups, then steps, then parts of rules, then settings.
pub(super) fn shrink(case: &Case, asks_max: u32, mut fails: impl FnMut(&Case) -> bool) -> Case {
    let mut smallest = case.clone();
    let mut asks = 0;
    let mut try_one = |candidate: Case, smallest: &mut Case| {
        if asks >= asks_max || candidate == *smallest {
            return false;
        }
        asks += 1;
        let better = fails(&candidate);
        if better {
            *smallest = candidate;
        }
        better
    };
    loop {
        let before = smallest.clone();
        remove_groups(&mut smallest, rules_len, without_rules, &mut try_one);
        remove_groups(&mut smallest, |case| case.steps.len(), without_steps, &mut try_one);
        simplify_rules(&mut smallest, &mut try_one);
        for plainer in PLAINER {
            let settings = plainer(smallest.settings);
            let candidate = Case { settings, ..smallest.clone() };
            try_one(candidate, &mut smallest);
        }
        if smallest == before {
            return smallest;
        }
    }
}

/// Removes ever smaller groups of things, from the end.
fn remove_groups(
    smallest: &mut Case,
    len: fn(&Case) -> usize,
    without: fn(&Case, usize, usize) -> Case,
    try_one: &mut impl FnMut(Case, &mut Case) -> bool,
) {
    let mut size = len(smallest).div_ceil(2);
    while size > 0 {
        let mut end = len(smallest);
        while end > 0 {
            let start = end.saturating_sub(size);
            try_one(without(smallest, start, end), smallest);
            end = start.min(len(smallest));
        }
        size /= 2;
    }
}

/// Returns which lines are rules, declare chains of users, or add something: text and number.
fn removable(case: &Case) -> Vec<(usize, usize)> {
    let is_removable = |line: &str| {
        let declares = line.starts_with(':') && line.contains(" - ");
        line.starts_with("-A") || declares || line.starts_with("add ")
    };
    let texts = case.texts().into_iter().enumerate();
    let lines = texts.flat_map(|(of, text)| {
        text.lines.iter().enumerate().map(move |(at, line)| ((of, at), line))
    });
    lines.filter(|(_, line)| is_removable(line)).map(|(at, _)| at).collect()
}

fn rules_len(case: &Case) -> usize {
    removable(case).len()
}

fn without_rules(case: &Case, start: usize, end: usize) -> Case {
    let gone = &removable(case)[start..end];
    let mut case = case.clone();
    for (of, text) in case.texts_mut().into_iter().enumerate() {
        let mut at = 0;
        text.lines.retain(|_| {
            at += 1;
            !gone.contains(&(of, at - 1))
        });
    }
    case
}

/// Removes steps, and those that refer to them.
fn without_steps(case: &Case, start: usize, end: usize) -> Case {
    let mut new: Vec<Option<usize>> = Vec::new();
    let mut steps: Vec<Step> = Vec::new();
    for (at, step) in case.steps.iter().enumerate() {
        let referred = step.refers_to().map(|to| new[to]);
        if (start..end).contains(&at) || referred == Some(None) {
            new.push(None);
            continue;
        }
        let mut step = step.clone();
        if let Some(Some(to)) = referred {
            step.refer_to(to);
        }
        new.push(Some(steps.len()));
        steps.push(step);
    }
    Case { steps, ..case.clone() }
}

/// Leaves conditions out of rules, one at a time.
fn simplify_rules(smallest: &mut Case, try_one: &mut impl FnMut(Case, &mut Case) -> bool) {
    for (of, at) in removable(smallest) {
        let mut part = 0;
        while let Some(line) = without_part(&smallest.texts()[of].lines[at], part) {
            let mut candidate = smallest.clone();
            candidate.texts_mut()[of].lines[at] = line;
            if !try_one(candidate, smallest) {
                part += 1;
            }
        }
    }
}

/// Returns a rule without one of its conditions: `-m` with what belongs to it, or one of the
/// header. The chain and the target stay.
fn without_part(line: &str, part: usize) -> Option<String> {
    let words: Vec<&str> = line.split(' ').collect();
    if words[0] == "add" {
        return without_nft_part(&words, part);
    }
    let begins = |at: usize| {
        let at = if words[at] == "!" { at + 1 } else { at };
        let header = words.get(at).is_some_and(|w| matches!(*w, "-s" | "-d" | "-i" | "-o" | "-p"));
        let extension = words[at.min(words.len() - 1)] == "-m";
        // An inverted option of an extension belongs to that.
        header || extension
    };
    let starts: Vec<usize> =
        (2..words.len()).filter(|at| begins(*at) && (*at == 0 || words[*at - 1] != "!")).collect();
    let start = *starts.get(part)?;
    let is_end = |at: &usize| begins(*at) || matches!(words[*at], "-j" | "-g");
    let end = (start + 2..words.len()).find(is_end).unwrap_or(words.len());
    let left = words[..start].iter().chain(&words[end..]);
    Some(left.copied().collect::<Vec<&str>>().join(" "))
}

/// Words that begin a condition or statement of nftables, unless they stand behind one that
/// takes an expression.
const BEGIN: [&str; 25] = [
    "ip", "ip6", "tcp", "udp", "th", "icmp", "icmpv6", "meta", "ct", "iif", "oif", "iifname",
    "oifname", "fib", "numgen", "jhash", "limit", "quota", "counter", "add", "update", "accept",
    "drop", "notrack", "reject",
];

/// Returns a rule of nftables without one of its conditions or statements.
fn without_nft_part(words: &[&str], part: usize) -> Option<String> {
    // add rule FAMILY TABLE CHAIN …
    if words.get(1) != Some(&"rule") {
        return None;
    }
    let mut depth = 0_usize;
    let mut starts = Vec::new();
    for at in 5..words.len() {
        let inside = ["set", "to", ".", "original", "reply", "jhash", "(", "with"];
        let begins =
            at == 5 || BEGIN.contains(&words[at]) && !inside.contains(&words[at - 1]) && depth == 0;
        starts.extend(begins.then_some(at));
        match words[at] {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    // Nothing is no rule.
    let start = *starts.get(part).filter(|_| starts.len() > 1)?;
    let end = starts.get(part + 1).copied().unwrap_or(words.len());
    let left = words[..start].iter().chain(&words[end..]);
    Some(left.copied().collect::<Vec<&str>>().join(" "))
}

/// Each makes settings nearer to a plain node's in one point.
const PLAINER: [fn(Settings) -> Settings; 4] = [
    |settings| Settings { bridge_nf: true, ..settings },
    |settings| Settings { route_localnet: false, ..settings },
    |settings| Settings { hairpin: false, ..settings },
    |settings| Settings { default_route: true, ..settings },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::prove::case::{Backend, Opening, Rules, Transport};
    use crate::command::prove::place::{Family, Place};

    fn open(sport: u16) -> Step {
        Step::Open(Opening {
            from: Place::A1,
            proto: Transport::Udp,
            src: [10, 244, 1, 2].into(),
            sport,
            dst: [10, 96, 0, 10].into(),
            dport: 53,
            flags: String::new(),
            ttl: 64,
            tos: 0,
            data: 0,
            mark: 0,
        })
    }

    fn case() -> Case {
        let mut lines = vec!["*filter".to_owned(), ":INPUT ACCEPT [0:0]".to_owned()];
        lines.push(":X - [0:0]".to_owned());
        for i in 0..20 {
            lines.push(format!("-A INPUT -s 10.0.0.{i} -p udp -m udp ! --dport {i} -j ACCEPT"));
        }
        lines.push("COMMIT".to_owned());
        let steps = vec![
            open(1),
            Step::Answer { to: 0, flags: String::new() },
            open(2),
            Step::Again { of: 2, flags: String::new() },
            Step::Answer { to: 3, flags: String::new() },
        ];
        let settings = Settings {
            family: Family::V4,
            bridge_nf: false,
            route_localnet: true,
            hairpin: true,
            default_route: false,
        };
        Case {
            name: "x".into(),
            backend: Backend::Legacy,
            settings,
            sets: Rules::default(),
            rules: Rules { lines },
            beside: Rules::default(),
            steps,
            shares: None,
        }
    }

    #[test]
    fn what_does_not_matter_goes() {
        let fails = |case: &Case| {
            case.rules.lines.iter().any(|line| line.contains("10.0.0.13"))
                && case.steps.iter().any(|step| {
                    matches!(step, Step::Again { of, .. }
                    if matches!(&case.steps[*of], Step::Open(open) if open.sport == 2))
                })
                && case.settings.hairpin
        };
        let small = shrink(&case(), 1000, fails);
        assert_eq!(
            small.rules.lines,
            ["*filter", ":INPUT ACCEPT [0:0]", "-A INPUT -s 10.0.0.13 -j ACCEPT", "COMMIT"]
        );
        assert_eq!(small.steps, [open(2), Step::Again { of: 0, flags: String::new() }]);
        assert!(small.settings.hairpin && !small.settings.route_localnet);
    }

    #[test]
    fn asks_no_more_than_it_may() {
        let mut asked = 0;
        let _ = shrink(&case(), 7, |_| {
            asked += 1;
            true
        });
        assert_eq!(asked, 7);
    }

    #[test]
    fn parts_of_rules() {
        let line = "-A X ! -s 1.2.3.4 -p tcp -m tcp ! --dport 80 -m mark --mark 1 -j DROP";
        let parts: Vec<String> = (0..9).map_while(|part| without_part(line, part)).collect();
        assert_eq!(
            parts,
            [
                "-A X -p tcp -m tcp ! --dport 80 -m mark --mark 1 -j DROP",
                "-A X ! -s 1.2.3.4 -m tcp ! --dport 80 -m mark --mark 1 -j DROP",
                "-A X ! -s 1.2.3.4 -p tcp -m mark --mark 1 -j DROP",
                "-A X ! -s 1.2.3.4 -p tcp -m tcp ! --dport 80 -j DROP",
            ]
        );
    }

    #[test]
    fn parts_of_rules_of_nftables() {
        let line = "add rule ip t c ip saddr { 1.2.3.4, 1.2.3.5 } meta mark set meta mark or 0x2 \
                    ip daddr . meta l4proto . th dport vmap @m";
        let parts: Vec<String> = (0..9).map_while(|part| without_part(line, part)).collect();
        assert_eq!(
            parts,
            [
                "add rule ip t c meta mark set meta mark or 0x2 \
                 ip daddr . meta l4proto . th dport vmap @m",
                "add rule ip t c ip saddr { 1.2.3.4, 1.2.3.5 } \
                 ip daddr . meta l4proto . th dport vmap @m",
                "add rule ip t c ip saddr { 1.2.3.4, 1.2.3.5 } meta mark set meta mark or 0x2",
            ]
        );
        assert_eq!(without_part("add rule ip t c drop", 0), None);
        assert_eq!(without_part("add element ip t s { 1.2.3.4 }", 0), None);
    }
}
