// Package dispatcher makes every Windows node hold the accepted CA bundle.
//
// It is level-triggered and keeps no state of its own. What should be is computed from the sources, the snapshots, the
// nodes and the Jobs; what is missing is created, what is superseded is removed. The Job is the record: an admin who
// deletes one has asked for the delivery again.
//
// The decisions are pure and each in one file: [Assemble] makes one bundle of the sources, [Judge] puts it through the
// gate, [Decide] says what a node needs, [Pace] says who may start. The I/O is at the edge: [Rollout] writes snapshots
// and publishes what is to be delivered, [Delivery] reconciles one node with one Job. [Load] reads everything at once for
// the kubectl plugin and runs the same decisions.
//
// There is one Job name per node, whatever the bundle. The API server itself therefore sees to it that a node never has
// two Jobs, however many dispatchers run with however stale caches, and that the Job of an older bundle is gone before
// the Job of a newer one exists.
package dispatcher
