//! Paths into a scenario: `propagation.delay.exponential.mean`, `clients.front.rate`,
//! `objects.Deployment/nginx.spec.replicas`.

use super::diagnostic::{Diagnostic, Span};
use super::tree::{Entry, Node, Value};

/// Sets the value at `path`, making mappings on the way where there are none. `key_span` is where
/// the path was written, for fields that it makes.
pub(crate) fn assign(
    root: &mut Node,
    path: &str,
    key_span: Span,
    value: Node,
) -> Result<(), Box<Diagnostic>> {
    let mut at = root;
    // Where the path is written as it is, without quotes, each part has a place of its own.
    let is_plain = key_span.end - key_span.start == path.len();
    let mut next = key_span.start;
    for (depth, segment) in path.split('.').enumerate() {
        let start = next;
        next += segment.len() + 1;
        let part = Span::new(key_span.file, start, start + segment.len());
        let part = if is_plain { part } else { key_span };
        let so_far = || path.split('.').take(depth).collect::<Vec<_>>().join(".");
        if segment.is_empty() {
            return Err(Box::new(
                Diagnostic::error("bad-path", key_span, format!("`{path}` has an empty part"))
                    .help("a path is names joined by points, as in `cluster.nodes`"),
            ));
        }
        if matches!(at.value, Value::Null) {
            at.value = Value::Map(Vec::new());
        }
        let what = at.describe();
        at =
            match &mut at.value {
                Value::Map(entries) => {
                    let index = match entries.iter().position(|entry| entry.key == segment) {
                        Some(index) => index,
                        None => {
                            entries.push(Entry {
                                key: segment.to_owned(),
                                key_span: part,
                                value: Node { value: Value::Null, span: part },
                            });
                            entries.len() - 1
                        }
                    };
                    &mut entries[index].value
                }
                Value::List(items) => {
                    let index = find_item(items, segment);
                    let count = items.len();
                    match index.and_then(|index| items.get_mut(index)) {
                        Some(item) => item,
                        None => {
                            return Err(Box::new(Diagnostic::error(
                            "bad-path",
                            key_span,
                            format!("`{}` has no item `{segment}`", so_far()),
                        )
                        .help(format!(
                            "an item is named by its number from 0 (there are {count}), its \
                             `name`, or an object's kind/name"
                        ))));
                        }
                    }
                }
                _ => {
                    return Err(Box::new(
                        Diagnostic::error(
                            "bad-path",
                            key_span,
                            format!("`{}` is {}, which has no `{segment}`", so_far(), what),
                        )
                        .help("a path ends at a value; see `rulelag schema` for what there is"),
                    ));
                }
            };
    }
    *at = value;
    Ok(())
}

fn find_item(items: &[Node], segment: &str) -> Option<usize> {
    if let Ok(index) = segment.parse::<usize>() {
        return Some(index);
    }
    items.iter().position(|item| {
        let is = |node: Option<&Node>, text: &str| node.and_then(Node::text) == Some(text);
        let object_name = item.get("metadata").and_then(|metadata| metadata.get("name"));
        let is_object = segment
            .split_once('/')
            .is_some_and(|(kind, name)| is(item.get("kind"), kind) && is(object_name, name));
        is_object
            || is(item.get("name"), segment)
            || is(object_name, segment)
            || is(item.get("deployment"), segment)
    })
}
