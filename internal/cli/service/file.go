package service

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/blackhole/blackhole/internal/cli/file"
	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Bounds of a file of instances.
const (
	maxInstanceFile = 4 << 20 // bytes
	maxInstances    = 1000
)

// fileInstance is the form of an instance in a file: the API's form with the service.
type fileInstance struct {
	*instance.RegistrationJSON
	Service string `json:"service"`
}

// parseInstances reads registrations from JSON or YAML. A registration without a namespace
// gets the default one. Errors of several registrations name their position.
func parseInstances(data []byte, namespace string) ([]instance.Registration, error) {
	values, _ := file.JSONValues(data)
	if values == nil {
		var err error
		if values, err = yamlValues(data); err != nil {
			return nil, err
		}
	}
	if len(values) > maxInstances {
		return nil, fault.Invalidf("--file", len(values), "has more than %d instances", maxInstances)
	}
	list := make([]instance.Registration, len(values))
	for n, value := range values {
		var err error
		if list[n], err = parseInstance(value, namespace); err != nil {
			if len(values) > 1 {
				err = fault.In("["+strconv.Itoa(n)+"]", err)
			}
			return nil, err
		}
	}
	return list, nil
}

func parseInstance(value json.RawMessage, namespace string) (instance.Registration, error) {
	f := fileInstance{RegistrationJSON: new(instance.RegistrationJSON)}
	if err := strictjson.Decode(value, maxInstanceFile, &f); err != nil {
		return instance.Registration{}, err
	}
	if f.Namespace == "" {
		f.Namespace = namespace
	}
	r, err := f.Registration(instance.Name{Service: f.Service})
	if err == nil {
		err = r.Normalize()
	}
	return r, err
}

// yamlValues converts all documents of a YAML file, and the elements of lists, to JSON.
func yamlValues(data []byte) ([]json.RawMessage, error) {
	var values []json.RawMessage
	for documents := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var document any
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			return values, nil
		}
		if err != nil {
			return nil, fault.Invalidf("--file", nil, "is not YAML: %w", err)
		}
		list, ok := document.([]any)
		if !ok && document != nil {
			list = []any{document}
		}
		for _, item := range list {
			value, err := json.Marshal(item)
			if err != nil {
				return nil, fault.Invalidf("--file", nil, "cannot be converted to JSON: %w", err)
			}
			values = append(values, value)
		}
	}
}
