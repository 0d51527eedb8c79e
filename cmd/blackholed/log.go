package main

import (
	"log"
	"log/slog"

	golog "github.com/ipfs/go-log/v2"
	"github.com/libp2p/go-libp2p/gologshim"
)

// adoptLibraries gives the lines of libraries the form of the peer's log: those of package log, of libp2p, and of the DHT, whose
// logger takes only a format.
func adoptLibraries(format string) func(warnings, failures slog.Handler) {
	return func(warnings, failures slog.Handler) {
		log.SetFlags(0)
		log.SetOutput(slog.NewLogLogger(warnings, slog.LevelWarn).Writer())
		gologshim.SetDefaultHandler(failures)
		if format == "json" {
			c := golog.GetConfig()
			c.Format = golog.JSONOutput
			golog.SetupLogging(c)
		}
	}
}
