//! Enums whose variants are names, in JSON, in text and in Rust.
//!
//! Invariants: a variant has one spelling everywhere, defined once, in its declaration.

/// Declares an enum of names: `as_str`, `ALL`, `Display`, `FromStr`, and the same text in JSON.
///
/// `else Unknown`, with serde's attributes for it, adds a variant for names of newer programs. It is not in
/// `ALL` and cannot be parsed from text, because a value that a caller requests must be known.
///
/// `of EventKind` adds a method `event_type` to that enum, whose variants have the same names.
macro_rules! names {
    (
        $(#[$meta:meta])* pub enum $name:ident ($what:literal) of $kind:ident {
            $($(#[$doc:meta])* $variant:ident = $text:literal,)+
        }
        $(#[$unknown_doc:meta])* else $unknown:ident
    ) => {
        $crate::values::names::names! {
            $(#[$meta])* pub enum $name ($what) { $($(#[$doc])* $variant = $text,)+ }
            $(#[$unknown_doc])* else $unknown
        }

        impl $kind {
            /// Returns its type.
            pub fn event_type(&self) -> $name {
                match self {
                    $(Self::$variant { .. } => $name::$variant,)+
                    Self::$unknown { .. } => $name::$unknown,
                }
            }
        }
    };
    (
        $(#[$meta:meta])* pub enum $name:ident ($what:literal) { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }
        $($(#[$unknown_doc:meta])* else $unknown:ident)?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)+
            $($(#[$unknown_doc])* #[schemars(skip)] $unknown,)?
        }

        impl $name {
            /// All names that this version knows.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the name, as in JSON.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                    $(Self::$unknown => "unknown",)?
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::values::error::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.iter().find(|name| name.as_str() == text);
                found.copied().ok_or_else(|| $crate::values::error::UnknownName { what: $what, name: text.to_owned() })
            }
        }
    };
}

pub(crate) use names;
