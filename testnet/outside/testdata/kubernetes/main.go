// Command kube is the API server, the controllers and the scheduler of Kubernetes as one program, so that they link once.
package main

import (
	"fmt"
	"os"

	_ "time/tzdata"

	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controller "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	if len(os.Args) > 1 {
		name := os.Args[1]
		os.Args = append([]string{name}, os.Args[2:]...)
		switch name {
		case "apiserver":
			os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
		case "controllers":
			os.Exit(cli.Run(controller.NewControllerManagerCommand()))
		case "scheduler":
			os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
		}
	}
	fmt.Fprintln(os.Stderr, "usage: kube apiserver|controllers|scheduler FLAGS")
	os.Exit(2)
}
