// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.util.concurrent.locks.LockSupport

import com.intel.analytics.bigdl.dllib.nn.abstractnn.TensorModule
import com.intel.analytics.bigdl.dllib.tensor.Tensor
import com.intel.analytics.bigdl.numeric.NumericFloat

/**
 * Layer that owns parameters and returns gradients, but waits instead of computing: a machine with
 * few cores cannot compute for many executors at once. It returns its input of rows by columns
 * unchanged. Its gradients are made up from the gradient of the first column, and differ between
 * layers and positions.
 *
 * @param index among the layers of this class, from 0
 * @param count of parameters
 * @param forwardSeconds time of a forward pass in training
 * @param backwardSeconds time of a backward pass
 */
final class EmulatedLayer(index: Int, count: Int, forwardSeconds: Double, backwardSeconds: Double)
    extends TensorModule[Float] {
  import EmulatedLayer._

  require(count > 0, s"an emulated layer has $count parameters: it needs at least 1")
  private val weight, gradWeight = Tensor[Float](count)
  addRamp(weight, LargestParameter)

  override def updateOutput(input: Tensor[Float]): Tensor[Float] = {
    if (isTraining()) pause(forwardSeconds)
    output = input
    output
  }

  override def updateGradInput(input: Tensor[Float], gradOutput: Tensor[Float]): Tensor[Float] = {
    pause(backwardSeconds)
    gradInput = gradOutput
    gradInput
  }

  override def accGradParameters(input: Tensor[Float], gradOutput: Tensor[Float]): Unit =
    addRamp(gradWeight, gradOutput.select(2, 1).sum() / (index + 1))

  override def parameters(): (Array[Tensor[Float]], Array[Tensor[Float]]) =
    (Array(weight), Array(gradWeight))
}

private object EmulatedLayer {
  private val LargestParameter = 0.01f

  /** Add evenly spaced values from minus to plus `largest`. */
  private def addRamp(to: Tensor[Float], largest: Float): Unit = {
    val (array, first, count) = (to.storage().array(), to.storageOffset() - 1, to.nElement())
    val step = 2 * largest / math.max(1, count - 1)
    var i = 0
    while (i < count) {
      array(first + i) += i * step - largest
      i += 1
    }
  }

  private def pause(seconds: Double): Unit = {
    val end = System.nanoTime + (seconds * 1e9).toLong
    var left = end - System.nanoTime
    while (left > 0) {
      LockSupport.parkNanos(left)
      if (Thread.interrupted()) throw new InterruptedException("an emulated layer was interrupted")
      left = end - System.nanoTime
    }
  }
}
