//! JSON into a Kubernetes type, as `kubectl --validate=strict` reads it.
//!
//! Serde drops unknown fields and stops at the first value of a wrong type. This deserializer
//! reports every unknown field, with the type's own field list to suggest from, and says where in
//! the object a value has the wrong type.

use std::fmt;

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Value;

use super::{Path, Problem, Segment};

/// Most values of a wrong type that are reported of one object.
const MOST_ERRORS: usize = 50;

/// Reads `value` as a `T`; what is wrong with it goes to `problems`. Nothing is returned if there
/// was anything.
pub(super) fn read<T: DeserializeOwned>(value: &Value, problems: &mut Vec<Problem>) -> Option<T> {
    let before = problems.len();
    let mut value = value.clone();
    for _ in 0..MOST_ERRORS {
        let mut found = Vec::new();
        let result =
            T::deserialize(Strict { value: &value, path: Path::default(), problems: &mut found });
        for problem in found {
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        let error = match result {
            Ok(read) if problems.len() == before => return Some(read),
            Ok(_) => return None,
            Err(error) => error,
        };
        // Blank out the culprit and read on, to report all of them at once.
        let path = error.path.unwrap_or_default();
        let again = blank(&mut value, &path);
        problems.push(Problem {
            code: "wrong-type",
            path,
            message: error.message,
            help: "Kubernetes refuses this type here".to_owned(),
        });
        if !again {
            break;
        }
    }
    None
}

/// Sets the value at `path` to null; returns whether it was anything else.
fn blank(value: &mut Value, path: &Path) -> bool {
    let mut at = value;
    for segment in &path.0 {
        let next = match segment {
            Segment::Key(key) => at.get_mut(key),
            Segment::Index(index) => at.get_mut(*index),
        };
        match next {
            Some(next) => at = next,
            None => return false,
        }
    }
    !std::mem::replace(at, Value::Null).is_null()
}

#[derive(Debug)]
struct Error {
    path: Option<Path>,
    message: String,
}

impl Error {
    fn at(mut self, path: &Path) -> Error {
        self.path.get_or_insert_with(|| path.clone());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Error {
        Error { path: None, message: message.to_string() }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Error {
        let expected = match expected.to_string().as_str() {
            "i32" | "i64" => "a whole number".to_owned(),
            "a string" | "String" => "text".to_owned(),
            "a sequence" => "a list".to_owned(),
            "a map" => "a mapping".to_owned(),
            name if name.starts_with(|c: char| c.is_ascii_uppercase()) => {
                format!("a mapping ({name})")
            }
            other => other.to_owned(),
        };
        let found = match found {
            Unexpected::Str(text) => format!("the text {text:?}"),
            Unexpected::Unsigned(number) => format!("the number `{number}`"),
            Unexpected::Signed(number) => format!("the number `{number}`"),
            Unexpected::Float(number) => format!("the number `{number}`"),
            Unexpected::Bool(value) => format!("`{value}`"),
            Unexpected::Map => "a mapping".to_owned(),
            Unexpected::Seq => "a list".to_owned(),
            Unexpected::Unit => "nothing".to_owned(),
            other => other.to_string(),
        };
        de::Error::custom(format_args!("expected {expected}, found {found}"))
    }
}

struct Strict<'de, 'p> {
    value: &'de Value,
    path: Path,
    problems: &'p mut Vec<Problem>,
}

impl<'de> Strict<'de, '_> {
    fn visit<V: Visitor<'de>>(
        self,
        fields: Option<&'static [&'static str]>,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let path = self.path.clone();
        let result = match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => {
                if let Some(number) = number.as_u64() {
                    visitor.visit_u64(number)
                } else if let Some(number) = number.as_i64() {
                    visitor.visit_i64(number)
                } else {
                    visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN))
                }
            }
            Value::String(text) => visitor.visit_str(text),
            Value::Array(items) => visitor.visit_seq(Items {
                items: items.iter().enumerate(),
                path: self.path,
                problems: self.problems,
            }),
            Value::Object(entries) => visitor.visit_map(Entries {
                entries: entries.iter(),
                value: None,
                fields,
                path: self.path,
                problems: self.problems,
            }),
        };
        result.map_err(|error| error.at(&path))
    }
}

impl<'de> Deserializer<'de> for Strict<'de, '_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.visit(None, visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let path = self.path.clone();
        visitor.visit_newtype_struct(self).map_err(|error| error.at(&path))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.visit(Some(fields), visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct Items<'de, 'p> {
    items: std::iter::Enumerate<std::slice::Iter<'de, Value>>,
    path: Path,
    problems: &'p mut Vec<Problem>,
}

impl<'de> SeqAccess<'de> for Items<'de, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some((index, value)) = self.items.next() else {
            return Ok(None);
        };
        let path = self.path.join(Segment::Index(index));
        let problems = &mut *self.problems;
        seed.deserialize(Strict { value, path, problems }).map(Some)
    }
}

struct Entries<'de, 'p> {
    entries: serde_json::map::Iter<'de>,
    value: Option<(&'de str, &'de Value)>,
    fields: Option<&'static [&'static str]>,
    path: Path,
    problems: &'p mut Vec<Problem>,
}

impl<'de> MapAccess<'de> for Entries<'de, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some((key, value)) = self.entries.next() else {
            return Ok(None);
        };
        if let Some(fields) = self.fields
            && !fields.contains(&key.as_str())
        {
            self.problems.push(Problem {
                code: "unknown-field",
                path: self.path.join(Segment::Key(key.clone())),
                message: format!("Kubernetes knows no field `{key}` here"),
                help: suggest(key, fields),
            });
        }
        self.value = Some((key, value));
        let key: de::value::StrDeserializer<'_, Error> = key.as_str().into_deserializer();
        seed.deserialize(key).map(Some).map_err(|error| error.at(&self.path))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (key, value) = self.value.take().expect("a value follows its key");
        let path = self.path.join(Segment::Key(key.to_owned()));
        let problems = &mut *self.problems;
        seed.deserialize(Strict { value, path, problems })
    }
}

/// Returns a sentence that names the field that was probably meant, or all that there are.
fn suggest(key: &str, fields: &[&str]) -> String {
    let best = fields.iter().min_by_key(|field| distance(key, field));
    match best {
        Some(best) if distance(key, best) <= key.len().max(best.len()) * 2 / 5 => {
            format!("did you mean `{best}`?")
        }
        _ if fields.len() <= 16 => format!("there are: {}", fields.join(", ")),
        _ => "see `kubectl explain` for what there is".to_owned(),
    }
}

/// Levenshtein distance, letter case ignored.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.to_lowercase().chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
