package logs

// EnvErrorFile says where a worker leaves its error, and where this process does.
const EnvErrorFile = "TORCHELASTIC_ERROR_FILE"

// EnvMark marks the workers of one agent where the paths of their error files do not.
const EnvMark = "RALLYPOINT_AGENT"
