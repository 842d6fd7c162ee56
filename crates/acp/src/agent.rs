//! The methods of the protocol.
//!
//! Invariants: no method waits in the loop that reads the editor's messages; a session that is opened again replaces the
//! one that was open under its id.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::{
    AgentCapabilities, AuthMethod, AuthMethodAgent, AuthMethodTerminal, AuthenticateRequest,
    AuthenticateResponse, CancelNotification, CloseSessionRequest, CloseSessionResponse,
    DeleteSessionRequest, DeleteSessionResponse, ErrorCode, Implementation, InitializeRequest,
    InitializeResponse, ListSessionsRequest, ListSessionsResponse, LoadSessionRequest, LoadSessionResponse,
    McpCapabilities, McpServer, NewSessionRequest, NewSessionResponse, PromptCapabilities, PromptRequest,
    PromptResponse, ResumeSessionRequest, ResumeSessionResponse, SessionCapabilities,
    SessionCloseCapabilities, SessionConfigOptionValue, SessionDeleteCapabilities, SessionId, SessionInfo,
    SessionListCapabilities, SessionResumeCapabilities, SetSessionConfigOptionRequest,
    SetSessionConfigOptionResponse, SetSessionModeRequest, SetSessionModeResponse,
};
use agent_client_protocol::v1::{ConnectionTo, Responder};
use agent_client_protocol::{
    Agent as Protocol, ByteStreams, Client as Editor, Error, on_receive_notification, on_receive_request,
};
use greenroom_terminal::time;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::compat::{TokioAsyncReadCompatExt as _, TokioAsyncWriteCompatExt as _};

use crate::options::{self, Choice};
use crate::program::{Program, Server, ServerKind};
use crate::session::{Session, check_folder, refused};
use crate::updates::Abilities;

/// Serves an editor on these streams, until the input ends.
///
/// # Errors
/// The streams failed, or the editor does not speak the protocol.
pub async fn serve(
    program: Arc<dyn Program>,
    input: impl AsyncRead + Send + 'static,
    output: impl AsyncWrite + Send + 'static,
) -> Result<(), String> {
    let agent = Arc::new(Agent { program, abilities: Mutex::default(), sessions: Mutex::default() });
    // Each method runs beside the loop that reads messages, because it may wait for the editor itself.
    macro_rules! on {
        ($request:ty, $method:ident) => {{
            let agent = Arc::clone(&agent);
            async move |request: $request, responder: Responder<_>, editor: ConnectionTo<Editor>| {
                let agent = Arc::clone(&agent);
                editor.clone().spawn(async move {
                    match agent.$method(request, editor).await {
                        Ok((response, opened)) => {
                            responder.respond(response)?;
                            if let Some((session, warnings)) = opened {
                                session.greet(&warnings);
                                session.ask_again().await;
                            }
                            Ok(())
                        }
                        Err(error) => responder.respond_with_error(error),
                    }
                })
            }
        }};
    }
    let cancelling = Arc::clone(&agent);
    Protocol
        .v1()
        .name("greenroom")
        .on_receive_request(on!(InitializeRequest, initialize), on_receive_request!())
        .on_receive_request(on!(AuthenticateRequest, authenticate), on_receive_request!())
        .on_receive_request(on!(NewSessionRequest, new_session), on_receive_request!())
        .on_receive_request(on!(LoadSessionRequest, load_session), on_receive_request!())
        .on_receive_request(on!(ResumeSessionRequest, resume_session), on_receive_request!())
        .on_receive_request(on!(ListSessionsRequest, list_sessions), on_receive_request!())
        .on_receive_request(on!(DeleteSessionRequest, delete_session), on_receive_request!())
        .on_receive_request(on!(CloseSessionRequest, close_session), on_receive_request!())
        .on_receive_request(on!(PromptRequest, prompt), on_receive_request!())
        .on_receive_request(on!(SetSessionModeRequest, set_mode), on_receive_request!())
        .on_receive_request(on!(SetSessionConfigOptionRequest, set_option), on_receive_request!())
        .on_receive_notification(
            async move |cancel: CancelNotification, editor: ConnectionTo<Editor>| {
                let session = cancelling.session(&cancel.session_id);
                editor.spawn(async move {
                    if let Ok(session) = session {
                        session.cancel().await;
                    }
                    Ok(())
                })
            },
            on_receive_notification!(),
        )
        .connect_to(ByteStreams::new(output.compat_write(), input.compat()))
        .await
        .map_err(|error| error.to_string())
}

/// The agent of one editor.
struct Agent {
    program: Arc<dyn Program>,
    abilities: Mutex<Abilities>,
    sessions: Mutex<HashMap<SessionId, Arc<Session>>>,
}

/// The response of a method, and a session that it has opened, with warnings for the user.
type Answer<T> = Result<(T, Option<(Arc<Session>, Vec<String>)>), Error>;

impl Agent {
    async fn initialize(
        &self,
        request: InitializeRequest,
        _: ConnectionTo<Editor>,
    ) -> Answer<InitializeResponse> {
        *self.abilities.lock() = Abilities::of(&request.client_capabilities);
        let sessions = SessionCapabilities::new()
            .list(SessionListCapabilities::new())
            .delete(SessionDeleteCapabilities::new())
            .resume(SessionResumeCapabilities::new())
            .close(SessionCloseCapabilities::new());
        let capabilities = AgentCapabilities::new()
            .load_session(true)
            .prompt_capabilities(PromptCapabilities::new().image(true).embedded_context(true))
            .mcp_capabilities(McpCapabilities::new().http(true))
            .session_capabilities(sessions);
        let about = "Stores the key of a provider, so that it need not be in the environment".to_owned();
        let login = match request.client_capabilities.auth.terminal {
            true => {
                let method = AuthMethodTerminal::new("login", "Log in").args(vec!["--login".to_owned()]);
                AuthMethod::Terminal(method.description(about))
            }
            false => {
                let about = format!("{about}: run `greenroom login` in a terminal");
                AuthMethod::Agent(AuthMethodAgent::new("login", "Log in").description(about))
            }
        };
        let info = Implementation::new("greenroom", env!("CARGO_PKG_VERSION")).title("Greenroom".to_owned());
        let response = InitializeResponse::new(ProtocolVersion::V1)
            .agent_capabilities(capabilities)
            .auth_methods(vec![login])
            .agent_info(info);
        Ok((response, None))
    }

    /// The key is stored by `greenroom login`; whether there is one is seen when a session is opened.
    async fn authenticate(
        &self,
        _: AuthenticateRequest,
        _: ConnectionTo<Editor>,
    ) -> Answer<AuthenticateResponse> {
        Ok((AuthenticateResponse::new(), None))
    }

    async fn new_session(
        &self,
        request: NewSessionRequest,
        editor: ConnectionTo<Editor>,
    ) -> Answer<NewSessionResponse> {
        let NewSessionRequest { cwd, mcp_servers, .. } = request;
        let (session, warnings) = self.open(editor, cwd, None, mcp_servers).await?;
        let choices = session.choices();
        let response = NewSessionResponse::new(session.id().to_owned())
            .modes(choices.modes())
            .config_options(choices.options());
        Ok((response, Some((session, warnings))))
    }

    async fn load_session(
        &self,
        request: LoadSessionRequest,
        editor: ConnectionTo<Editor>,
    ) -> Answer<LoadSessionResponse> {
        let LoadSessionRequest { cwd, mcp_servers, session_id, .. } = request;
        let (session, warnings) = self.open(editor, cwd, Some(&session_id), mcp_servers).await?;
        session.replay().await?;
        let choices = session.choices();
        let response = LoadSessionResponse::new().modes(choices.modes()).config_options(choices.options());
        Ok((response, Some((session, warnings))))
    }

    async fn resume_session(
        &self,
        request: ResumeSessionRequest,
        editor: ConnectionTo<Editor>,
    ) -> Answer<ResumeSessionResponse> {
        let ResumeSessionRequest { cwd, mcp_servers, session_id, .. } = request;
        let (session, warnings) = self.open(editor, cwd, Some(&session_id), mcp_servers).await?;
        let choices = session.choices();
        let response = ResumeSessionResponse::new().modes(choices.modes()).config_options(choices.options());
        Ok((response, Some((session, warnings))))
    }

    async fn open(
        &self,
        editor: ConnectionTo<Editor>,
        folder: PathBuf,
        session_id: Option<&SessionId>,
        servers: Vec<McpServer>,
    ) -> Result<(Arc<Session>, Vec<String>), Error> {
        check_folder(&folder)?;
        // The connection of the session that it replaces ends first.
        if let Some(session_id) = session_id {
            self.sessions.lock().remove(session_id);
        }
        let mut skipped = Vec::new();
        let servers =
            servers.into_iter().filter_map(|server| read(server).map_err(|name| skipped.push(name)).ok());
        let servers = servers.collect();
        let (program, abilities) = (Arc::clone(&self.program), *self.abilities.lock());
        let named = session_id.map(|id| &*id.0);
        let (session, mut warnings) =
            Session::open(program, editor, abilities, folder, named, servers).await?;
        let skipped = skipped.into_iter().map(|name| {
            format!("The MCP server {name} of the editor is not used: its transport is not supported.")
        });
        warnings.extend(skipped);
        let session = Arc::new(session);
        self.sessions.lock().insert(SessionId::new(session.id()), Arc::clone(&session));
        Ok((session, warnings))
    }

    async fn list_sessions(
        &self,
        request: ListSessionsRequest,
        _: ConnectionTo<Editor>,
    ) -> Answer<ListSessionsResponse> {
        let ListSessionsRequest { cwd, cursor, .. } = request;
        let page = self.program.sessions(cwd.as_deref(), cursor).await.map_err(refused)?;
        let info = |summary: &greenroom::SessionSummary| {
            SessionInfo::new(summary.id.clone(), self.program.folder_of(summary))
                .title(summary.shown_title().map(str::to_owned))
                .updated_at(time::rfc3339(summary.updated_at_ms))
        };
        let sessions = page.sessions.iter().map(info).collect();
        let response = ListSessionsResponse::new(sessions).next_cursor(page.next);
        Ok((response, None))
    }

    async fn delete_session(
        &self,
        request: DeleteSessionRequest,
        _: ConnectionTo<Editor>,
    ) -> Answer<DeleteSessionResponse> {
        self.sessions.lock().remove(&request.session_id);
        self.program.delete(&request.session_id.0).await.map_err(refused)?;
        Ok((DeleteSessionResponse::new(), None))
    }

    async fn close_session(
        &self,
        request: CloseSessionRequest,
        _: ConnectionTo<Editor>,
    ) -> Answer<CloseSessionResponse> {
        let session = self.session(&request.session_id)?;
        session.cancel().await;
        self.sessions.lock().remove(&request.session_id);
        self.program.close(&request.session_id.0);
        Ok((CloseSessionResponse::new(), None))
    }

    async fn prompt(&self, request: PromptRequest, _: ConnectionTo<Editor>) -> Answer<PromptResponse> {
        let session = self.session(&request.session_id)?;
        Ok((PromptResponse::new(session.prompt(request.prompt).await?), None))
    }

    async fn set_mode(
        &self,
        request: SetSessionModeRequest,
        _: ConnectionTo<Editor>,
    ) -> Answer<SetSessionModeResponse> {
        let session = self.session(&request.session_id)?;
        let mode = options::mode(&request.mode_id.0).map_err(invalid)?;
        session.choose(Choice::Mode(mode)).await?;
        Ok((SetSessionModeResponse::new(), None))
    }

    async fn set_option(
        &self,
        request: SetSessionConfigOptionRequest,
        _: ConnectionTo<Editor>,
    ) -> Answer<SetSessionConfigOptionResponse> {
        let session = self.session(&request.session_id)?;
        let SessionConfigOptionValue::ValueId { value } = &request.value else {
            return Err(invalid("the value must be the id of a choice".to_owned()));
        };
        let choice = Choice::read(&request.config_id.0, &value.0).map_err(invalid)?;
        let choices = session.choose(choice).await?;
        Ok((SetSessionConfigOptionResponse::new(choices.options()), None))
    }

    fn session(&self, id: &SessionId) -> Result<Arc<Session>, Error> {
        let session = self.sessions.lock().get(id).cloned();
        session.ok_or_else(|| {
            invalid(format!("session {id} is not open; session/new or session/load opens one"))
        })
    }
}

fn invalid(reason: String) -> Error {
    Error::new(ErrorCode::InvalidParams, reason)
}

/// Reads an MCP server of the editor.
///
/// # Errors
/// The name of a server whose transport is not supported.
fn read(server: McpServer) -> Result<Server, String> {
    match server {
        McpServer::Stdio(server) => {
            let env = server.env.into_iter().map(|variable| (variable.name, variable.value)).collect();
            let kind = ServerKind::Program { command: server.command, args: server.args, env };
            Ok(Server { name: server.name, kind })
        }
        McpServer::Http(server) => {
            let headers = server.headers.into_iter().map(|header| (header.name, header.value)).collect();
            Ok(Server { name: server.name, kind: ServerKind::Service { url: server.url, headers } })
        }
        McpServer::Sse(server) => Err(server.name),
        _ => Err("of another kind".to_owned()),
    }
}
