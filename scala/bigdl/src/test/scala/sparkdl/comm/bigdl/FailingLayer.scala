// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.util.concurrent.atomic.AtomicInteger

import com.intel.analytics.bigdl.dllib.nn.abstractnn.TensorModule
import com.intel.analytics.bigdl.dllib.tensor.Tensor
import com.intel.analytics.bigdl.numeric.NumericFloat

/** Layer that returns its input, until it throws: see [[FailingLayer]]. */
final class FailingLayer extends TensorModule[Float] {
  override def updateOutput(input: Tensor[Float]): Tensor[Float] = {
    if (FailingLayer.left.decrementAndGet() == 0)
      throw FailingLayer.failure
    output = input
    output
  }

  override def updateGradInput(input: Tensor[Float], gradOutput: Tensor[Float]): Tensor[Float] = {
    gradInput = gradOutput
    gradInput
  }
}

object FailingLayer {

  /** Exception to throw. */
  @volatile var failure: Exception = _

  /** Forward passes of all ranks in this JVM after which one pass fails. */
  val left = new AtomicInteger
}
