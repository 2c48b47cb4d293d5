//! The JSON Schema of a scenario file, made from the reader's own tables.

use serde_json::{Map, Value, json};

use super::diagnostic::{Diagnostics, FileId};
use super::raw::{Absent, EXPECTATION, Field, Kind, SCENARIO, Table};
use super::tree::parse;

/// Returns the JSON Schema of a scenario file.
pub(crate) fn schema() -> Value {
    let mut definitions = Map::new();
    let mut schema = table(&SCENARIO, &mut definitions);
    let root = schema.as_object_mut().into_iter();
    for root in root {
        root.insert(
            "$schema".into(),
            "https://json-schema.org/draft/2020-12/schema".into(),
        );
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
        schema["oneOf"] = table
            .one_of
            .iter()
            .map(|field| json!({ "required": [field.name] }))
            .collect();
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
            "type": ["string", "integer"],
            "pattern": r"^\+?((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+$|^0$",
            "maximum": 0,
            "minimum": 0,
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
}
