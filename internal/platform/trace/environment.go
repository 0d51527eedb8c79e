package trace

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Program describes who makes the spans. The variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES prevail.
type Program struct {
	Name     string // of the service
	Version  string
	Instance string // id of the peer
}

// FromEnvironment returns a Tracer as the standard variables of OpenTelemetry ask for it; nil without them. It
// decides by getenv. The libraries of OpenTelemetry read the details of the export from the environment of the
// process: OTEL_EXPORTER_OTLP_*, OTEL_BSP_*, OTEL_SPAN_*.
//
// Errors: Invalid with the variable, if the variables ask for something that this program lacks. Then there are no
// traces, and the caller should say so.
func FromEnvironment(ctx context.Context, getenv func(string) string, p Program, log *slog.Logger) (*Tracer, error) {
	const op = "trace.FromEnvironment"
	on, err := wanted(getenv)
	if !on || err != nil {
		return nil, fault.Wrap(op, err)
	}
	sampler, err := samplerOf(getenv)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	who, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", p.Name), attribute.String("service.version", p.Version), attribute.String("service.instance.id", p.Instance),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fault.Wrap(op, fault.Invalidf("OTEL_RESOURCE_ATTRIBUTES", getenv("OTEL_RESOURCE_ATTRIBUTES"), "%w", err))
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	return New(sdk.WithBatcher(&logged{SpanExporter: exporter, log: log}), sdk.WithResource(who), sdk.WithSampler(sampler)), nil
}

// wanted reports whether the variables ask for traces.
func wanted(getenv func(string) string) (bool, error) {
	first := func(names ...string) (name, value string) {
		for _, name := range names {
			if value := strings.TrimSpace(getenv(name)); value != "" {
				return name, value
			}
		}
		return "", ""
	}
	if _, off := first("OTEL_SDK_DISABLED"); strings.EqualFold(off, "true") {
		return false, nil
	}
	_, endpoint := first("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	switch name, exporter := first("OTEL_TRACES_EXPORTER"); {
	case exporter == "none", exporter == "" && endpoint == "":
		return false, nil
	case exporter != "" && exporter != "otlp":
		return false, fault.Invalidf(name, exporter, "must be otlp or none: this program has no other exporter")
	}
	if name, protocol := first("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return false, fault.Invalidf(name, protocol, "must be http/protobuf: this program has no other protocol (collectors take it at port 4318)")
	}
	return true, nil
}

// samplerOf returns the sampler of OTEL_TRACES_SAMPLER: by default all traces, as the callers of this peer decide.
func samplerOf(getenv func(string) string) (sdk.Sampler, error) {
	const variable, argument = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
	share := 1.0
	if arg := strings.TrimSpace(getenv(argument)); arg != "" {
		var err error
		if share, err = strconv.ParseFloat(arg, 64); err != nil || !(share >= 0 && share <= 1) {
			return nil, fault.Invalidf(argument, arg, "must be a share from 0 to 1")
		}
	}
	switch name := strings.ToLower(strings.TrimSpace(getenv(variable))); name {
	case "", "parentbased_always_on":
		return sdk.ParentBased(sdk.AlwaysSample()), nil
	case "always_on":
		return sdk.AlwaysSample(), nil
	case "always_off":
		return sdk.NeverSample(), nil
	case "traceidratio":
		return sdk.TraceIDRatioBased(share), nil
	case "parentbased_always_off":
		return sdk.ParentBased(sdk.NeverSample()), nil
	case "parentbased_traceidratio":
		return sdk.ParentBased(sdk.TraceIDRatioBased(share)), nil
	default:
		return nil, fault.Invalidf(variable, name, "must be always_on, always_off, traceidratio, or one of these after parentbased_")
	}
}

// logged is an exporter whose failures go to the log of the peer, the first of several in a row alone. OpenTelemetry would print
// each of them.
type logged struct {
	sdk.SpanExporter
	log     *slog.Logger
	failing atomic.Bool
}

// ExportSpans implements sdk.SpanExporter.
func (e *logged) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	switch failed := err != nil; {
	case failed && !e.failing.Swap(true):
		e.log.Warn("spans are lost: the collector of OTEL_EXPORTER_OTLP_ENDPOINT does not take them", "error", err)
	case !failed && e.failing.Swap(false):
		e.log.Info("the collector takes spans again")
	}
	return nil
}
