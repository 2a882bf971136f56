"""What tests share: builders of values, fakes that speak the real protocols, and the real control plane."""
