//! Tools in groups, as coding agents send them: on the wire a group and a tool have a name each, and the model knows one
//! name for both.

use serde_json::Value;

/// Stands between the two in the name that the model knows.
const BETWEEN: &str = "__";

/// The name that the model knows.
pub(super) fn joined(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}{BETWEEN}{name}"))
}

/// The grouped tools of a request, to take their names apart again.
pub(super) struct Namespaces(Vec<Grouped>);

struct Grouped {
    joined: String,
    namespace: String,
    name: String,
}

impl Namespaces {
    /// Of a list that [`super::tools::tools`] has taken.
    pub(super) fn of(tools: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let groups = tools.as_array().into_iter().flatten().filter(|tool| tool["type"] == "namespace");
        let inside = groups.flat_map(|group| {
            let namespace = text(&group["name"]);
            group["tools"].as_array().into_iter().flatten().map(move |tool| {
                let name = text(&tool["name"]);
                Grouped { joined: joined(Some(&namespace), &name), namespace: namespace.clone(), name }
            })
        });
        Self(inside.collect())
    }

    /// The group, if there is one, and the name in it.
    pub(super) fn apart<'a>(&'a self, name: &'a str) -> (Option<&'a str>, &'a str) {
        match self.0.iter().find(|grouped| grouped.joined == name) {
            Some(grouped) => (Some(&grouped.namespace), &grouped.name),
            None => (None, name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_come_apart_as_they_went_in() {
        let tools = json!([
            {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b__c"}, {"type": "function", "name": "d"}]},
            {"type": "function", "name": "a__e"},
        ]);
        let of = Namespaces::of(&tools);
        for (namespace, name) in [(Some("a"), "b__c"), (Some("a"), "d"), (None, "a__e"), (None, "d")] {
            assert_eq!(of.apart(&joined(namespace, name)), (namespace, name));
        }
    }
}
