package agent

import "errors"

var (
	errTaken   = errors.New("is the id of a service that was not announced for this instance")
	errMissing = errors.New("are not registered")
)
