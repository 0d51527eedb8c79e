package archtest

import (
	"path"
)

// An exception permits one breach of one rule.
type exception struct {
	rule    string // name in rules()
	where   string // file or folder without its subfolders, relative to the module root
	subject string // the identifier or import path named in the finding
	reason  string // one line: why the rule is wrong here
}

// exceptions is the whole list. One that is no longer needed fails the test,
// so the list cannot outlive its reasons.
func exceptions() []exception {
	return []exception{
		{rule: "fence", where: "cmd/blackholed", subject: "github.com/libp2p/go-libp2p/gologshim", reason: "libp2p has one logger for the whole program, so the program sets it"},
		{rule: "width", where: "internal/coordination/machine", subject: "files", reason: "the state machine is pure and flat: one file for each kind of command, and none knows another"},
		{rule: "width", where: "pkg/records", subject: "exported", reason: "each message of the record's schema has one type here"},
		{rule: "width", where: "pkg/client", subject: "exported", reason: "four doors behind one import: a program that buys and locks needs one package"},
		{rule: "owner", where: "pkg/client", subject: "Client", reason: "a part of the SDK is what its caller holds, and it may hold the client"},
		{rule: "owner", where: "internal/discovery/index", subject: "snapshot", reason: "a snapshot is an immutable state of a shard, and owns nothing"},
		{rule: "home", where: "version.go", subject: "blackhole", reason: "go:embed reaches no file above its own folder, and VERSION stands at the root"},
		{rule: "text", where: "internal/cli/run.go", subject: "cut", reason: "the revision of the build is in hex"},
		{rule: "text", where: "internal/frontend/httpapi/transcode/transcode.go", subject: "cut", reason: "picks one of two characters"},
	}
}

func (e exception) permits(rule string, f finding) bool {
	in := f.file == e.where || path.Dir(f.file) == e.where
	return e.rule == rule && in && e.subject == f.subject
}
