//! The JSON Schema of a scenario file, made from the reader's own tables.

use serde_json::{Map, Value, json};

use super::diagnostic::{Diagnostics, FileId};
use super::fields::{EXPECTATION, SCENARIO};
use super::raw::{Absent, Field, Kind, Table};
use super::tree::parse;

/// Returns the JSON Schema of a scenario file.
pub(crate) fn schema() -> Value {
    let mut definitions = Map::new();
    let mut schema = table(&SCENARIO, &mut definitions);
    let root = schema.as_object_mut().into_iter();
    for root in root {
        root.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
        root.insert("title".into(), "rulelag scenario".into());
        root.insert("$defs".into(), std::mem::take(&mut definitions).into());
    }
    schema
}

/// Returns a reference to a table's schema, adding it to `definitions`: laws hold laws.
fn reference(of: &'static Table, definitions: &mut Map<String, Value>) -> Value {
    let name = of.name.replace(' ', "-");
    if !definitions.contains_key(&name) {
        definitions.insert(name.clone(), Value::Null);
        let definition = table(of, definitions);
        definitions.insert(name.clone(), definition);
    }
    json!({ "$ref": format!("#/$defs/{name}") })
}

fn table(table: &'static Table, definitions: &mut Map<String, Value>) -> Value {
    let properties: Map<String, Value> = table
        .all_fields()
        .map(|field| (field.name.to_owned(), property(field, definitions)))
        .collect();
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    let required: Vec<&str> = table
        .fields
        .iter()
        .filter(|field| field.absent == Absent::Required)
        .map(|field| field.name)
        .collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    if !table.one_of.is_empty() {
        schema["oneOf"] =
            table.one_of.iter().map(|field| json!({ "required": [field.name] })).collect();
    }
    schema
}

fn property(field: &Field, definitions: &mut Map<String, Value>) -> Value {
    let mut schema = kind(field.kind, definitions);
    schema["description"] = field.doc.into();
    if let Absent::Default(default) = field.absent {
        let documents = parse(default, FileId::FIRST, &mut Diagnostics::default());
        schema["default"] = documents.first().map_or(Value::Null, |node| node.to_json());
    }
    schema
}

fn kind(of: Kind, definitions: &mut Map<String, Value>) -> Value {
    match of {
        Kind::Text => json!({ "type": ["string", "integer", "boolean"] }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Int(min, i64::MAX) => json!({ "type": "integer", "minimum": min }),
        Kind::Int(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Number(min, max) => json!({ "type": "number", "minimum": min, "maximum": max }),
        Kind::Duration => json!({
            "anyOf": [
                {
                    "type": "string",
                    "pattern": r"^\+?((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+$|^0$",
                },
                { "const": 0 },
            ],
        }),
        Kind::Rate => {
            json!({ "type": "string", "pattern": r"^\s*[0-9][0-9_.eE+]*\s*/\s*[smh]\s*$" })
        }
        Kind::Cidr => json!({ "type": "string", "pattern": r"^\d+\.\d+\.\d+\.\d+/\d+$" }),
        Kind::Port => json!({ "type": ["integer", "string"], "minimum": 1, "maximum": 65535 }),
        Kind::Word(words) => json!({ "enum": words }),
        Kind::Expectation => {
            let reference = reference(&EXPECTATION, definitions);
            json!({ "anyOf": [{ "type": "string" }, reference] })
        }
        Kind::Any(what) => json!({ "title": what }),
        Kind::List(item) => json!({ "type": "array", "items": kind(*item, definitions) }),
        Kind::Map(key, value) => json!({
            "type": "object",
            "propertyNames": { "title": key },
            "additionalProperties": kind(*value, definitions),
        }),
        Kind::Table(table) => reference(table, definitions),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_has_its_definition() {
        let schema = schema();
        let text = schema.to_string();
        let mut references = 0;
        for part in text.split("#/$defs/").skip(1) {
            let name = part.split('"').next().unwrap_or_default();
            assert!(schema["$defs"][name].is_object(), "{name}");
            references += 1;
        }
        assert!(references > 20);
    }

    /// Checks `value` by the words that [`schema`] uses, but for `pattern`.
    fn accepts(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
        if let Some(reference) = schema["$ref"].as_str() {
            let name = reference.trim_start_matches("#/$defs/");
            return accepts(root, &root["$defs"][name], value);
        }
        let fail = |why: &str| Err(format!("{value} {why}: {schema}"));
        let is = |name: &str| match name {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "integer" => value.is_i64(),
            "number" => value.is_number(),
            _ => value.is_boolean(),
        };
        let types: Vec<&str> = match &schema["type"] {
            Value::String(name) => vec![name],
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        if !types.is_empty() && !types.into_iter().any(is) {
            return fail("has the wrong type");
        }
        if let (Some(number), Some(least)) = (value.as_f64(), schema["minimum"].as_f64())
            && number < least
        {
            return fail("is too small");
        }
        if schema.get("const").is_some_and(|only| only != value) {
            return fail("is another value");
        }
        if let Some(words) = schema["enum"].as_array()
            && !words.contains(value)
        {
            return fail("is none of the words");
        }
        let alternatives = |name: &str| {
            let of = schema[name].as_array()?;
            Some(of.iter().filter(|schema| accepts(root, schema, value).is_ok()).count())
        };
        if alternatives("oneOf").is_some_and(|matching| matching != 1) {
            return fail("is not exactly one of");
        }
        if alternatives("anyOf") == Some(0) {
            return fail("is none of");
        }
        for item in value.as_array().into_iter().flatten() {
            accepts(root, &schema["items"], item)?;
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            if value.get(name.as_str().unwrap_or_default()).is_none() {
                return fail("lacks a field");
            }
        }
        for (key, value) in value.as_object().into_iter().flatten() {
            match (&schema["properties"][key], &schema["additionalProperties"]) {
                (Value::Null, Value::Bool(false)) => return fail(key),
                (Value::Null, more) => accepts(root, more, value)?,
                (property, _) => accepts(root, property, value)?,
            }
        }
        Ok(())
    }

    #[test]
    fn the_library_is_accepted() {
        let schema = schema();
        for name in crate::library::names() {
            let text = crate::library::get(name).unwrap();
            let document = parse(text, FileId::FIRST, &mut Diagnostics::default()).remove(0);
            assert_eq!(accepts(&schema, &schema, &document.to_json()), Ok(()), "{name}");
        }
        for (text, why) in [
            ("cluster: {}", "lacks a field"),
            ("{ apiVersion: rulelag/v1, clustr: {} }", "clustr"),
            ("{ apiVersion: rulelag/v1, cluster: { nodes: 0 } }", "is too small"),
            ("{ apiVersion: rulelag/v1, events: [{ at: 1s }] }", "is not exactly one of"),
            ("{ apiVersion: rulelag/v1, duration: 5 }", "is none of"),
            ("{ apiVersion: rulelag/v1, proxy: { mode: ipchains } }", "is none of the words"),
        ] {
            let document = parse(text, FileId::FIRST, &mut Diagnostics::default()).remove(0);
            let found = accepts(&schema, &schema, &document.to_json()).expect_err(text);
            assert!(found.contains(why), "{text}: {found}");
        }
    }
}
