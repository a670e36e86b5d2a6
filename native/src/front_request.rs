//! What is read of the beginning of a request, to know who answers it.

use std::net::Ipv4Addr;

use httparse::{EMPTY_HEADER, Header, Status};

/// Longer heads go through to the server behind, which has the limit.
const LONGEST: usize = 1 << 16;
const HEADERS: usize = 64;

/// The names by which requests for keys are answered here, besides addresses and names without a dot; the server behind
/// judges any other. Its rule is `coopstreams.query.host_names`.
pub struct Hosts {
    pub names: Vec<String>,
    pub suffixes: Vec<String>,
}

impl Hosts {
    fn know(&self, host: &[u8]) -> bool {
        let Ok(host) = str::from_utf8(host) else {
            return false;
        };
        let port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let name = match host.rsplit_once(':') {
            Some((name, rest)) if port(rest) => name,
            _ => host,
        };
        let name = name.to_ascii_lowercase();
        !name.contains('.')
            || name.parse::<Ipv4Addr>().is_ok()
            || self.names.contains(&name)
            || self.suffixes.iter().any(|suffix| name.ends_with(suffix.as_str()))
    }
}

/// Who answers the bytes that a client has sent.
pub enum Request {
    /// More must come.
    Partial,
    /// Python, in a batch.
    Keys {
        end: usize,
        target: Vec<u8>,
        authorization: Option<Vec<u8>>,
    },
    /// The server behind; no body follows the head, and the connection stays open.
    Plain { end: usize, method: Method },
    /// The server behind, and all that follows, too.
    Other,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Method {
    Get,
    Head,
    Other,
}

/// Return who answers. `known`: the names by which the server is asked; None: any.
pub fn read(bytes: &[u8], known: Option<&Hosts>) -> Request {
    if let [b'\r' | b'\n', ..] = bytes {
        return Request::Other; // httparse skips empty lines, the server behind refuses them
    }
    let mut headers = [EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let end = match request.parse(bytes) {
        Ok(Status::Complete(end)) if end <= LONGEST => end,
        Ok(Status::Partial) if bytes.len() <= LONGEST => return Request::Partial,
        _ => return Request::Other,
    };
    let (Some(target), Some(1)) = (request.path, request.version) else {
        return Request::Other;
    };
    let (mut hosts, mut authorization, mut hop) = (0, None, false);
    let mut stranger = false;
    for header in request.headers.iter() {
        match Name::of(header) {
            Name::Host => {
                hosts += 1;
                stranger |= known.is_some_and(|known| !known.know(header.value));
            }
            Name::Authorization => authorization = authorization.or(Some(header.value.to_vec())),
            Name::Forwarded => hop = true,
            Name::Framing => return Request::Other,
            Name::Connection if !header.value.eq_ignore_ascii_case(b"keep-alive") => return Request::Other,
            Name::Connection | Name::Unknown => {}
        }
    }
    let method = match request.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        _ => Method::Other,
    };
    if method == Method::Get && hosts == 1 && !stranger && !hop && for_keys(target) {
        let target = target.as_bytes().to_vec();
        return Request::Keys {
            end,
            target,
            authorization,
        };
    }
    Request::Plain { end, method }
}

/// Whether the target is `/v1/stores/{store}/keys/{key}` or `/v1/stores/{store}/keys?...`, to every reader of it: the store
/// has no percent sign, and nothing is a control character when it is decoded.
fn for_keys(target: &str) -> bool {
    let Some(rest) = target.strip_prefix("/v1/stores/") else {
        return false;
    };
    let (path, _) = rest.split_once('?').unwrap_or((rest, ""));
    let Some((store, resource)) = path.split_once('/') else {
        return false;
    };
    let keys = resource == "keys" || resource.starts_with("keys/");
    let clear = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    keys && !store.is_empty() && !store.contains('%') && target.bytes().all(clear) && !path.contains("%0")
}

enum Name {
    Host,
    Authorization,
    Forwarded,
    Framing,
    Connection,
    Unknown,
}

impl Name {
    fn of(header: &Header<'_>) -> Self {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        match header.name.len() {
            4 if is("host") => Self::Host,
            13 if is("authorization") => Self::Authorization,
            23 if is("x-coopstreams-forwarded") => Self::Forwarded,
            14 if is("content-length") => Self::Framing,
            17 if is("transfer-encoding") => Self::Framing,
            6 if is("expect") => Self::Framing,
            7 if is("upgrade") => Self::Framing,
            10 if is("connection") => Self::Connection,
            _ => Self::Unknown,
        }
    }
}

/// How much of an answer is a whole one.
pub enum Answer {
    /// More must come.
    Partial,
    /// So many bytes; another request may follow.
    Whole(usize),
    /// Its end is not known from its head, or it is the last one.
    Open,
}

/// Return how long the answer is that begins with these bytes.
pub fn length(bytes: &[u8], method: Method) -> Answer {
    let mut headers = [EMPTY_HEADER; HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let head = match answer.parse(bytes) {
        Ok(Status::Complete(head)) => head,
        Ok(Status::Partial) if bytes.len() <= LONGEST => return Answer::Partial,
        _ => return Answer::Open,
    };
    let mut body = None;
    for header in answer.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            body = str::from_utf8(header.value)
                .ok()
                .and_then(|text| text.parse::<usize>().ok());
        }
        if header.name.eq_ignore_ascii_case("connection") || header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Answer::Open;
        }
    }
    match (answer.code, body) {
        (Some(200..=599), Some(_)) if method == Method::Head => Answer::Whole(head),
        (Some(200..=599), Some(body)) => Answer::Whole(head + body),
        _ => Answer::Open,
    }
}
