// Package attack tries what an attacker would: someone who can reach the webhook's port, who can have a certificate with any
// subject put into a bundle, who can edit courier's configuration, or who can write to the directories on a node.
//
// What editors of the namespaces and the accounts of courier itself can and cannot do is tried line by line on a real API
// server in test/manifests.
package attack
