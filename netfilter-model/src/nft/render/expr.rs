//! Expressions and values as text.

use crate::conntrack::Direction;
use crate::nft::expr::{CtKey, Expr, FibResult, Meta};
use crate::nft::render::{push, write_anonymous};
use crate::nft::rule::{Comparison, Op, Right, Table};
use crate::nft::set::{Range, SetUse};
use crate::nft::value::{DeviceText, Type};

/// Writes expressions with what joins them.
pub(super) fn write_all(table: &Table, exprs: &[Expr], out: &mut String) {
    for (at, expr) in exprs.iter().enumerate() {
        out.push_str(if at > 0 { " . " } else { "" });
        write(table, expr, out);
    }
}

/// Writes an expression.
pub(super) fn write(table: &Table, expr: &Expr, out: &mut String) {
    match expr {
        Expr::Payload(payload) => {
            let (header, field) = payload.words();
            push(out, format_args!("{header} {field}"));
        }
        Expr::Meta(meta) => {
            let named = Meta::ALL.iter().find(|row| row.0 == *meta);
            let bare = matches!(meta, Meta::Iif | Meta::Oif | Meta::Iifname | Meta::Oifname);
            out.push_str(if bare { "" } else { "meta " });
            out.push_str(named.map_or("", |row| row.1));
        }
        Expr::Ct(key, direction) => {
            out.push_str(match direction {
                None => "ct ",
                Some(Direction::Original) => "ct original ",
                Some(Direction::Reply) => "ct reply ",
            });
            let named = CtKey::ALL.iter().find(|row| row.0 == *key);
            out.push_str(named.map_or("", |row| row.1));
        }
        Expr::Fib(fib) => {
            out.push_str(if fib.source { "fib saddr" } else { "fib daddr" });
            for (flag, name) in [(fib.mark, "mark"), (fib.iif, "iif"), (fib.oif, "oif")] {
                if flag {
                    push(out, format_args!(" . {name}"));
                }
            }
            out.push_str(match fib.result {
                FibResult::Type => " type",
                FibResult::Oif | FibResult::Exists => " oif",
                FibResult::Oifname => " oifname",
            });
        }
        Expr::Numgen { inc, modulus, offset } => {
            let how = if inc.is_some() { "inc" } else { "random" };
            push(out, format_args!("numgen {how} mod {modulus}"));
            write_offset(*offset, out);
        }
        Expr::Jhash { of, modulus, seed, offset } => {
            out.push_str("jhash ");
            write_all(table, of, out);
            push(out, format_args!(" mod {modulus}"));
            if let Some(seed) = seed {
                push(out, format_args!(" seed 0x{seed:x}"));
            }
            write_offset(*offset, out);
        }
        Expr::Symhash { modulus, offset } => {
            push(out, format_args!("symhash mod {modulus}"));
            write_offset(*offset, out);
        }
        Expr::Bits { of, and, xor } => write_bits(table, of, *and, *xor, out),
        Expr::Shift { of, left } => {
            write_operand(table, of, out);
            let sign = if *left < 0 { ">>" } else { "<<" };
            push(out, format_args!(" {sign} {}", left.unsigned_abs()));
        }
        Expr::Map { key, map } => {
            write_all(table, key, out);
            out.push_str(" map ");
            write_set_use(table, map, out);
        }
        Expr::Literal(value, of) => write_value(*of, *value, out),
    }
}

fn write_offset(offset: u32, out: &mut String) {
    if offset > 0 {
        push(out, format_args!(" offset {offset}"));
    }
}

/// Writes what an operator is applied to.
fn write_operand(table: &Table, of: &Expr, out: &mut String) {
    if let Expr::Bits { .. } | Expr::Shift { .. } = of {
        out.push('(');
        write(table, of, out);
        out.push(')');
    } else {
        write(table, of, out);
    }
}

fn write_bits(table: &Table, of: &Expr, and: u128, xor: u128, out: &mut String) {
    let kind = of.of_type();
    let all = kind.largest();
    write_operand(table, of, out);
    let mut part = |sign: &str, value: u128| {
        push(out, format_args!(" {sign} "));
        write_mask(kind, value, out);
    };
    if and == all & !xor {
        part("|", xor);
    } else if and == all {
        part("^", xor);
    } else {
        part("&", and);
        if xor != 0 {
            part(if and & xor == 0 { "|" } else { "^" }, xor);
        }
    }
}

/// Writes bits that an operator applies.
fn write_mask(of: Type, value: u128, out: &mut String) {
    if of.is_flags() {
        out.push('(');
        of.write_flags(value, " | ", out);
        out.push(')');
    } else {
        of.write(value, out);
    }
}

/// Writes a value; bits with their names joined as in a set.
fn write_value(of: Type, value: u128, out: &mut String) {
    if of.is_flags() { of.write_flags(value, " | ", out) } else { of.write(value, out) }
}

/// Writes a value or range.
pub(super) fn write_range(of: Type, (min, max): Range, out: &mut String) {
    if min == max {
        return write_value(of, min, out);
    }
    let span = min ^ max;
    let aligned = span & span.wrapping_add(1) == 0 && min & span == 0;
    match of {
        Type::Ipv4Addr | Type::Ipv6Addr if aligned => {
            of.write(min, out);
            push(out, format_args!("/{}", of.bits() - span.count_ones()));
        }
        Type::Ifname if aligned && span.count_ones().is_multiple_of(8) => {
            push(out, format_args!("\"{}*\"", DeviceText(min)));
        }
        Type::Ifname | Type::IfaceIndex => out.push('*'),
        _ => {
            of.write(min, out);
            out.push('-');
            of.write(max, out);
        }
    }
}

pub(super) fn write_set_use(table: &Table, set: &SetUse, out: &mut String) {
    match set {
        SetUse::Anonymous(set) => write_anonymous(table, set, out),
        SetUse::Named { index, .. } => {
            let name = table.sets.get(*index as usize).map_or("?", |set| &set.name);
            push(out, format_args!("@{name}"));
        }
    }
}

/// Returns how many leading bits a mask has, if it has no others and leaves some out.
fn prefix_len(of: Type, mask: u128) -> Option<u32> {
    let free = of.largest() ^ mask;
    let leading = mask != 0 && free != 0 && free & (free + 1) == 0;
    leading.then(|| of.bits() - free.count_ones())
}

/// Writes a comparison.
pub(super) fn write_comparison(table: &Table, comparison: &Comparison, out: &mut String) {
    let Comparison { left, op, right } = comparison;
    // Flags under a mask are written behind it.
    if let ([Expr::Bits { of, and, xor: 0 }], Op::Eq | Op::Ne, Right::Values(values)) =
        (left.as_slice(), op, right)
        && of.of_type().is_flags()
        && let [(value, _)] = values.as_slice()
    {
        write(table, of, out);
        out.push_str(if *op == Op::Ne { " != " } else { " " });
        of.of_type().write(*value, out);
        out.push_str(" / ");
        of.of_type().write(*and, out);
        return;
    }
    // So are a network's addresses, whatever the type.
    // nft: netlink_delinearize.c, relational_binop_postprocess
    if let ([Expr::Bits { of, and, xor: 0 }], Op::Eq | Op::Ne, Right::Values(values)) =
        (left.as_slice(), op, right)
        && let [(value, last)] = values.as_slice()
        && value == last
        && let Some(len) = prefix_len(of.of_type(), *and)
    {
        write(table, of, out);
        out.push_str(if *op == Op::Ne { " != " } else { " " });
        of.of_type().write(*value, out);
        push(out, format_args!("/{len}"));
        return;
    }
    write_all(table, left, out);
    let flags = left.len() == 1 && left[0].of_type().is_flags();
    let masked = left.len() == 1 && matches!(left[0], Expr::Bits { .. } | Expr::Shift { .. });
    let is_set = matches!(right, Right::Set(_));
    out.push_str(match op {
        Op::Eq if !is_set && (flags || masked) => " == ",
        Op::Eq | Op::Any => " ",
        Op::Ne => " != ",
        Op::Lt => " < ",
        Op::Le => " <= ",
        Op::Gt => " > ",
        Op::Ge => " >= ",
        Op::None => " ! ",
    });
    match right {
        Right::Set(set) => write_set_use(table, set, out),
        Right::Values(values) => {
            let types = left.iter().flat_map(Expr::types);
            for (at, (range, of)) in values.iter().zip(types).enumerate() {
                out.push_str(if at > 0 { " . " } else { "" });
                if flags && *op != Op::Ne {
                    of.write(range.0, out)
                } else {
                    write_range(of, *range, out)
                }
            }
        }
    }
}
