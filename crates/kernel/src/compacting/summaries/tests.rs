//! Requests for summaries: their sizes, what is asked again, how parts are merged.
