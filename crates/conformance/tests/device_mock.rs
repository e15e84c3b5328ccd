//! The mock device passes its own conformance.

use onebit_conformance::mock::MockDevice;

onebit_conformance::conformance!(MockDevice::new);
