package replica

import (
	"context"
	"fmt"
	"log/slog"

	"go.etcd.io/raft/v3"
)

var _ raft.Logger = raftLog{}

// raftLog adapts a logger for Raft. Raft names members by number and repeats itself, so that all but its errors are for
// debugging: the plane tells operators about leaders and majorities, once for each change.
type raftLog struct{ log *slog.Logger }

func (l raftLog) write(level slog.Level, v ...any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, fmt.Sprint(v...))
	}
}

func (l raftLog) writef(level slog.Level, format string, v ...any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, fmt.Sprintf(format, v...))
	}
}

func (l raftLog) Debug(v ...any)                   { l.write(slog.LevelDebug, v...) }
func (l raftLog) Debugf(format string, v ...any)   { l.writef(slog.LevelDebug, format, v...) }
func (l raftLog) Info(v ...any)                    { l.write(slog.LevelDebug, v...) }
func (l raftLog) Infof(format string, v ...any)    { l.writef(slog.LevelDebug, format, v...) }
func (l raftLog) Warning(v ...any)                 { l.write(slog.LevelDebug, v...) }
func (l raftLog) Warningf(format string, v ...any) { l.writef(slog.LevelDebug, format, v...) }
func (l raftLog) Error(v ...any)                   { l.write(slog.LevelError, v...) }
func (l raftLog) Errorf(format string, v ...any)   { l.writef(slog.LevelError, format, v...) }

// A broken invariant must end the process: the owner turns this panic into its end.
func (l raftLog) Fatal(v ...any)                 { panic(fmt.Sprint(v...)) }
func (l raftLog) Fatalf(format string, v ...any) { panic(fmt.Sprintf(format, v...)) }
func (l raftLog) Panic(v ...any)                 { panic(fmt.Sprint(v...)) }
func (l raftLog) Panicf(format string, v ...any) { panic(fmt.Sprintf(format, v...)) }
