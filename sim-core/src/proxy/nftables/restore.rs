//! The table as input of `nft -f`, as kube-proxy spells it.

use std::fmt::Write as _;

use netfilter_model::nft::{
    Base, Chain, Expr, Meta, NatKind, NatValue, Op, Right, Rule, Set, SetData, SetUse, Statement,
    Table, nft_element, nft_rule,
};

use super::Nftables;

impl Nftables {
    /// Returns the input of `nft -f` that makes this table in a kernel that has none: objects,
    /// rules, elements, each by name.
    pub fn restore(&self) -> String {
        let table = &self.table;
        let of = format!("{} {}", table.family, table.name);
        let mut out = String::new();
        let mut line = |text: std::fmt::Arguments<'_>| {
            out.write_fmt(text).expect("writing to a string does not fail");
            out.push('\n');
        };
        line(format_args!("add table {of}{}", comment_block(table.comment.as_deref())));
        for chain in &table.chains {
            line(format_args!("add chain {of} {}{}", chain.name, chain_block(chain)));
        }
        for set in &table.sets {
            line(format_args!("add {} {of} {} {}", kind(set), set.name, set_block(set)));
        }
        for (at, chain) in (0..).zip(&table.chains) {
            for (number, rule) in (0..).zip(&chain.rules) {
                let text = match self.spelled.get(&(at, number)) {
                    Some(text) => text.clone(),
                    None => rule_text(table, rule),
                };
                line(format_args!("add rule {of} {} {text}", chain.name));
            }
        }
        for set in &table.sets {
            for element in set.elements() {
                let element = nft_element(table, set, element);
                line(format_args!("add element {of} {} {{ {element} }}", set.name));
            }
        }
        out
    }
}

fn kind(set: &Set) -> &'static str {
    if set.data == SetData::None { "set" } else { "map" }
}

fn comment_block(comment: Option<&str>) -> String {
    comment.map_or(String::new(), |comment| format!(" {{ comment \"{comment}\" ; }}"))
}

fn chain_block(chain: &Chain) -> String {
    match &chain.base {
        None => comment_block(chain.comment.as_deref()),
        Some(Base { kind, hook_name, priority, .. }) => {
            format!(" {{ type {} hook {hook_name} priority {priority} ; }}", kind.name())
        }
    }
}

fn set_block(set: &Set) -> String {
    let names: Vec<&str> = set.key.iter().filter_map(|of| of.name()).collect();
    let data = if set.data == SetData::Verdict { " : verdict" } else { "" };
    let mut text = format!("{{ type {}{data} ;", names.join(" . "));
    if set.dynamic {
        text.push_str(" flags dynamic,timeout ;");
    }
    if let Some(ms) = set.timeout {
        push(&mut text, format_args!(" timeout {}s ;", ms / 1000));
    }
    if let Some(comment) = &set.comment {
        push(&mut text, format_args!(" comment \"{comment}\" ;"));
    }
    text + " }"
}

fn rule_text(table: &Table, rule: &Rule) -> String {
    let mut text = String::new();
    for statement in &rule.statements {
        text.push_str(if text.is_empty() { "" } else { " " });
        push_statement(table, statement, &mut text);
    }
    if let Some(comment) = &rule.comment {
        push(&mut text, format_args!(" comment \"{comment}\""));
    }
    text
}

/// Appends a statement; those that nft lists as they were given, as it lists them.
fn push_statement(table: &Table, statement: &Statement, text: &mut String) {
    let listed = || {
        let rule = Rule { statements: vec![statement.clone()], ..Rule::default() };
        nft_rule(table, &rule)
    };
    match statement {
        Statement::SetMark(Expr::Bits { xor, and, .. }) => {
            let how = if *and == u128::from(u32::MAX) { "xor" } else { "or" };
            push(text, format_args!("mark set mark {how} 0x{xor:08x}"));
        }
        Statement::Match(comparison) => match (comparison.left.as_slice(), &comparison.right) {
            ([Expr::Bits { and, .. }], _) => {
                let op = if comparison.op == Op::Ne { "!=" } else { "==" };
                push(text, format_args!("mark and 0x{and:08x} {op} 0"));
            }
            // Devices stand without quotes.
            ([Expr::Meta(Meta::Iif | Meta::Iifname)], Right::Values(values)) => {
                let range = values.first().copied().unwrap_or_default();
                let name = range.0.to_be_bytes();
                let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
                let name = String::from_utf8_lossy(&name[..end]);
                let by =
                    if comparison.left[0] == Expr::Meta(Meta::Iif) { "iif" } else { "iifname" };
                let op = if comparison.op == Op::Ne { "!= " } else { "" };
                let rest = if range.0 == range.1 { "" } else { "*" };
                push(text, format_args!("{by} {op}{name}{rest}"));
            }
            _ => text.push_str(&listed()),
        },
        Statement::Vmap { key, map: SetUse::Anonymous(set) } => {
            push_number(key, text);
            text.push_str(" vmap ");
            push_elements(table, set, text);
        }
        Statement::Nat(nat) if nat.kind == NatKind::Dnat => match &nat.address {
            Some(NatValue::Expr(Expr::Map { key, map: SetUse::Anonymous(set) })) => {
                let family = nat.family.unwrap_or(table.family);
                push(text, format_args!("dnat {family} addr . port to "));
                push_number(key, text);
                text.push_str(" map ");
                push_elements(table, set, text);
            }
            _ => text.push_str(&listed()),
        },
        _ => text.push_str(&listed()),
    }
}

fn push_number(key: &[Expr], text: &mut String) {
    if let [Expr::Numgen { modulus, .. }] = key {
        push(text, format_args!("numgen random mod {modulus}"));
    }
}

fn push_elements(table: &Table, set: &Set, text: &mut String) {
    text.push_str("{ ");
    for (at, element) in set.elements().iter().enumerate() {
        text.push_str(if at > 0 { " , " } else { "" });
        text.push_str(&nft_element(table, set, element));
    }
    text.push_str(" }");
}

fn push(text: &mut String, more: std::fmt::Arguments<'_>) {
    text.write_fmt(more).expect("writing to a string does not fail");
}
