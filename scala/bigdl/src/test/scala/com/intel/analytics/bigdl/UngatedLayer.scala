// SPDX-License-Identifier: Apache-2.0

package com.intel.analytics.bigdl

import com.intel.analytics.bigdl.dllib.nn.abstractnn.TensorModule
import com.intel.analytics.bigdl.dllib.tensor.Tensor
import com.intel.analytics.bigdl.dllib.utils.DistriParameterSynchronizer
import com.intel.analytics.bigdl.numeric.NumericFloat

/** Layer that returns its input and accepts no gate. */
final class UngatedLayer extends TensorModule[Float] {
  override def updateOutput(input: Tensor[Float]): Tensor[Float] = {
    output = input
    output
  }

  override def updateGradInput(input: Tensor[Float], gradOutput: Tensor[Float]): Tensor[Float] = {
    gradInput = gradOutput
    gradInput
  }

  private[bigdl] override def setParameterSynchronizer(by: DistriParameterSynchronizer[Float])
      : Unit =
    throw new IllegalStateException("no gate")
}
