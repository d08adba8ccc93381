package agent

// envErrorFile says where a worker leaves its error, and where this process does.
const envErrorFile = "TORCHELASTIC_ERROR_FILE"

// envMark marks the workers of one agent where the paths of their error files do not.
const envMark = "RALLYPOINT_AGENT"
