package agent

import "errors"

var (
	errTaken   = errors.New("is the id of a service that was not announced for this instance")
	errMissing = errors.New("are not registered")

	errElsewhere   = errors.New("an instance of this id is registered with another peer")
	errBehind      = errors.New("this peer cannot make sure of what the directory has")
	errUncommitted = errors.New("the directory cannot take it now, and nothing was kept")
)
