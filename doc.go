// Package courier is the guide to kubelet-ca-courier; it holds no code.
//
// A kubelet trusts the API server through the CAs in one file. On Windows nodes nothing inside the cluster keeps that
// file right. kubelet-ca-courier does, with two parts that share one judge:
//
//	admin or operator                                        Windows node
//	  │ writes the guarded ConfigMap                            ▲ C:\k\kubelet-ca.crt ──► kubelet reloads
//	  ▼                                                         │
//	API server ──AdmissionReview──► webhook                  node (in a HostProcess container)
//	  │ accepted = persisted           │ bundle.Review          ▲
//	  ▼                                ▼                        │ one Job per Windows node
//	ConfigMap ──watch──► dispatcher ──► snapshot ConfigMap ─────┘
//
// # The packages, in the order in which the data flows
//
//   - bundle says what a CA bundle is and whether one may replace another. It is pure: no I/O, no clock of its own, no
//     Kubernetes. Everything else asks it, so that the gate at admission, the gate before delivery, the landing and the
//     command line can never disagree.
//   - webhook is the gate at admission. It looks at the old object, the new one and the clock, and at nothing else; it
//     changes nothing.
//   - dispatcher makes the cluster match the accepted bundle: for every Windows node one succeeded Job. It keeps no
//     state of its own; the Job is the record.
//   - node lands the file on the node's disk and makes the kubelet look at it.
//
// # The programs
//
//   - cmd/courier runs webhook and dispatcher in the cluster.
//   - cmd/courier-node runs in the HostProcess container on the node.
//   - cmd/kubectl-courier is the admin's kubectl plugin.
//
// manifests holds what an admin applies, hack what developers use (the local cluster, the images), and test what proves
// the whole end to end. Start with the README, then docs/how-it-works.md.
package courier
