package httpapi

import (
	"context"
	"net/http"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/transcode"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// tradeWithin bounds a call about a grant: its provider may have to be looked for, and is asked up to three times.
const tradeWithin = 30 * time.Second

// tradeAPI handles the calls of trade, which the schema binds to paths.
type tradeAPI struct {
	*shared
	api.TradeServiceServer
}

func (p *tradeAPI) calls() []transcode.Call {
	return transcode.Of(p.TradeServiceServer, &api.TradeService_ServiceDesc, nil, nil)
}

func (p *tradeAPI) routes() (routes []route) {
	for _, c := range p.calls() {
		routes = append(routes, route{pattern: c.Pattern, role: grpcapi.Need(c.Method), asks: c.Asks, waits: true, serve: handler(func(w http.ResponseWriter, r *http.Request) error {
			ctx, cancel := p.untilClosing(r.Context())
			defer cancel()
			return p.orClosing(p.serve(ctx, &c, w, r))
		})})
	}
	return routes
}

func (p *tradeAPI) serve(ctx context.Context, c *transcode.Call, w http.ResponseWriter, r *http.Request) error {
	var body []byte
	if c.Body {
		var err error
		if body, err = readUpTo(w, r, maxBody); err != nil {
			return err
		}
	}
	req, err := c.Request(r, body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, tradeWithin)
	defer cancel()
	var resp proto.Message
	if err := c.Run(ctx, req, func(m proto.Message) error { resp = m; return nil }); err != nil {
		return err
	}
	return writeMessage(w, http.StatusOK, resp, 0)
}
