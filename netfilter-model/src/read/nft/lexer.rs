//! Words and signs of nft's language.

/// A word or sign, and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'t> {
    pub(super) kind: Kind<'t>,
    /// Its line, counted from 1.
    pub(super) line: u32,
    /// Where it begins in the text.
    pub(super) start: usize,
    /// Where it ends.
    pub(super) end: usize,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'t> {
    /// A name, number, address or keyword.
    Word(&'t str),
    /// Something in quotes.
    Text(&'t str),
    /// The name of a set, after `@`.
    Set(&'t str),
    /// Anything else.
    Sign(&'static str),
    /// A handle, as `-a` lists them.
    Handle(u64),
    /// The end of a line.
    Newline,
}

const SIGNS: [&str; 20] = [
    "==", "!=", "<=", ">=", "<<", ">>", "{", "}", "(", ")", ",", ";", "=", "<", ">", "&", "|", "^",
    "!", "@",
];

/// Takes a text apart.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut at = 0;
    let bytes = text.as_bytes();
    while at < bytes.len() {
        let start = at;
        let mut push = |kind, end: usize| found.push(Token { kind, line, start, end });
        match bytes[at] {
            b'\n' => {
                push(Kind::Newline, at + 1);
                line += 1;
                at += 1;
            }
            // A line goes on behind a backslash at its end.
            b'\\' if bytes.get(at + 1) == Some(&b'\n') => {
                line += 1;
                at += 2;
            }
            b'#' => {
                let end = text[at..].find('\n').map_or(bytes.len(), |len| at + len);
                let comment = text[at + 1..end].trim();
                if let Some(handle) = comment.strip_prefix("handle ") {
                    let number = handle.split_whitespace().next();
                    if let Some(Ok(number)) = number.map(str::parse) {
                        push(Kind::Handle(number), end);
                    }
                }
                at = end;
            }
            b'"' => {
                let rest = &text[at + 1..];
                let len = rest.find(['"', '\n']).unwrap_or(rest.len());
                at = at + 1 + len;
                let closed = bytes.get(at) == Some(&b'"');
                at += usize::from(closed);
                push(Kind::Text(&rest[..len]), at);
            }
            byte if byte.is_ascii_whitespace() => at += 1,
            _ => {
                let rest = &text[at..];
                if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                    at += sign.len();
                    let name = word_len(&text[at..]);
                    if *sign == "@" && name > 0 {
                        at += name;
                        found.push(Token {
                            kind: Kind::Set(&text[start + 1..at]),
                            line,
                            start,
                            end: at,
                        });
                    } else {
                        push(Kind::Sign(sign), at);
                    }
                    continue;
                }
                let len = word_len(rest);
                if len == 0 {
                    // A byte of something that is not the language's, or a lone sign.
                    let len = rest.chars().next().map_or(1, char::len_utf8);
                    at += len;
                    let kind = match &rest[..len] {
                        "." => Kind::Sign("."),
                        ":" => Kind::Sign(":"),
                        "-" => Kind::Sign("-"),
                        "/" => Kind::Sign("/"),
                        "+" => Kind::Sign("+"),
                        other => Kind::Word(other),
                    };
                    push(kind, at);
                    continue;
                }
                at += len;
                let word = &rest[..len];
                // `ADDRESS:PORT` and `KEY:DATA`; more than one colon is an address of its own.
                let colon = match word.find("]:") {
                    Some(bracket) => Some(bracket + 1),
                    None => word.find(':').filter(|at| !word[at + 1..].contains(':')),
                };
                let Some(colon) = colon else {
                    push(Kind::Word(word), at);
                    continue;
                };
                push(Kind::Word(&word[..colon]), start + colon);
                let behind = start + colon + 1;
                let sign = Kind::Sign(":");
                found.push(Token { kind: sign, line, start: behind - 1, end: behind });
                if behind < at {
                    let kind = Kind::Word(&word[colon + 1..]);
                    found.push(Token { kind, line, start: behind, end: at });
                }
            }
        }
    }
    found
}

/// Returns how long the word is that a text begins with.
fn word_len(text: &str) -> usize {
    let inside = |c: char| {
        c.is_alphanumeric()
            || matches!(
                c,
                '_' | '.'
                    | '/'
                    | ':'
                    | '-'
                    | '*'
                    | '\\'
                    | '%'
                    | '+'
                    | '~'
                    | '?'
                    | '['
                    | ']'
                    | '\''
                    | '$'
            )
    };
    let len = text.find(|c| !inside(c)).unwrap_or(text.len());
    let bytes = text.as_bytes();
    match bytes.first() {
        // Signs, unless they begin a name, a number or an address.
        Some(b'.' | b'/' | b'+') if len == 1 => 0,
        Some(b'-') if !bytes.get(1).is_some_and(u8::is_ascii_digit) => 0,
        Some(b':') if bytes.get(1) != Some(&b':') => 0,
        _ => len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind<'_>> {
        tokens(text).into_iter().map(|token| token.kind).collect()
    }

    #[test]
    fn words_and_signs_come_apart() {
        use Kind::{Handle, Newline, Set, Sign, Text, Word};
        assert_eq!(
            kinds("ip saddr . th dport @s-1 { 80 : goto a/b.c } # handle 7\n"),
            [
                Word("ip"),
                Word("saddr"),
                Sign("."),
                Word("th"),
                Word("dport"),
                Set("s-1"),
                Sign("{"),
                Word("80"),
                Sign(":"),
                Word("goto"),
                Word("a/b.c"),
                Sign("}"),
                Handle(7),
                Newline,
            ]
        );
        assert_eq!(
            kinds("iifname != \"eth*\" priority filter - 5;-110"),
            [
                Word("iifname"),
                Sign("!="),
                Text("eth*"),
                Word("priority"),
                Word("filter"),
                Sign("-"),
                Word("5"),
                Sign(";"),
                Word("-110"),
            ]
        );
        assert_eq!(kinds("to :80"), [Word("to"), Sign(":"), Word("80")]);
        assert_eq!(kinds("to ::1"), [Word("to"), Word("::1")]);
        assert_eq!(kinds("0: drop"), [Word("0"), Sign(":"), Word("drop")]);
        assert_eq!(kinds("1.2.3.4:80-90"), [Word("1.2.3.4"), Sign(":"), Word("80-90")]);
        assert_eq!(kinds("[fd00::1]:80"), [Word("[fd00::1]"), Sign(":"), Word("80")]);
        assert_eq!(kinds("02:00:00:00:00:01"), [Word("02:00:00:00:00:01")]);
    }

    #[test]
    fn an_open_quotation_ends_with_its_line() {
        assert_eq!(kinds("\"a\nb"), [Kind::Text("a"), Kind::Newline, Kind::Word("b")]);
        assert_eq!(kinds("é§ "), [Kind::Word("é"), Kind::Word("§")]);
    }
}
