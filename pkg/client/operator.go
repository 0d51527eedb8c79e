package client

import (
	"context"
	"errors"
	"io"

	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// maxDebugFiles bounds the files that Debug accepts.
const maxDebugFiles = 64

// DebugFile is a file for a report of a fault.
type DebugFile struct {
	Name    string
	Content []byte
}

// Operator examines and adjusts a peer. Its methods need the role admin.
type Operator struct{ c *Client }

// OperatorOf returns the operator's part of a client.
func OperatorOf(c *Client) Operator { return Operator{c} }

// Debug returns files for a report of a fault, without secrets: settings, metrics, goroutines and the last log lines.
// Errors: Forbidden without the role admin.
func (o Operator) Debug(ctx context.Context) ([]DebugFile, error) {
	const op = "client.Debug"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends a stream that is not read to its end
	stream, err := o.c.operator.Debug(ctx, &api.DebugRequest{})
	if err != nil {
		return nil, fromStatus(op, err)
	}
	var files []DebugFile
	for len(files) < maxDebugFiles {
		f, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return files, fromStatus(op, err)
		}
		files = append(files, DebugFile{Name: f.GetName(), Content: f.GetContent()})
	}
	return files, nil
}

// SetLogLevel changes the level of the peer's log (debug, info, warn or error) until the peer stops, and returns the
// level before. Errors: Invalid for another level, Forbidden without the role admin.
func (o Operator) SetLogLevel(ctx context.Context, level string) (previous string, err error) {
	resp, err := o.c.operator.SetLogLevel(ctx, &api.SetLogLevelRequest{Level: level})
	return resp.GetPrevious(), fromStatus("client.SetLogLevel", err)
}
