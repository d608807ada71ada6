package dispatcher

import (
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ConfigStore holds the configuration that applies. A bad edit changes nothing but [ConfigStore.Fault]: what was last
// good stays in force.
type ConfigStore struct {
	mu     sync.RWMutex
	config *Config
	fault  error
	uid    types.UID
}

// errNoConfig is the fault of a configuration that does not exist.
var errNoConfig = errors.New("the ConfigMap does not exist")

// Store takes in the configuration's ConfigMap as it is now; nil says that there is none.
func (s *ConfigStore) Store(object *corev1.ConfigMap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if object == nil {
		s.fault = errNoConfig
		return
	}
	config, err := ParseConfig(object.Data)
	s.fault, s.uid = err, object.UID
	if err == nil {
		s.config = &config
	}
}

// Config returns the configuration that applies, and false while there was never a good one.
func (s *ConfigStore) Config() (Config, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.config == nil {
		return Config{}, false
	}
	return *s.config, true
}

// Fault returns what is wrong with the configuration as it stands, and the UID of its ConfigMap.
func (s *ConfigStore) Fault() (types.UID, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.uid, s.fault
}
