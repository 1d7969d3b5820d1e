// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import com.intel.analytics.bigdl.SparkdlBigDL
import com.intel.analytics.bigdl.dllib.optim.OptimMethod
import com.intel.analytics.bigdl.dllib.tensor.{Storage, Tensor}
import com.intel.analytics.bigdl.numeric.NumericFloat

import sparkdl.comm.ps.{ElementRange, Segment, SegmentMap}

/** Parameters of a stretch of the flat vector, from the rank that updates them. */
private[bigdl] final case class Stretch(start: Int, values: Array[Float])

/**
 * Parameters that one rank updates: its stripe of each layer. Each stripe has its own optimization
 * method, so that layers can be updated in any grouping.
 *
 * @param memory has the parameters and the sums of their gradients
 * @param weights the initial values of all parameters
 * @param method by layer; it is copied
 * @param gradients number of gradients in each sum; the optimizer gets their mean
 * @param clipping smallest and largest value of a gradient
 */
private[bigdl] final class Shard(
    map: SegmentMap,
    memory: Segment,
    weights: Array[Float],
    method: Int => OptimMethod[Float],
    gradients: Int,
    clipping: Option[(Float, Float)]
) {
  private final class Stripe(range: ElementRange, method: OptimMethod[Float]) {
    private val count = range.count.toInt
    private val values = weights.slice(range.start.toInt, range.end.toInt)
    private val gradient = new Array[Float](count)
    private val (parameters, gradientTensor) = (Tensor(Storage(values)), Tensor(Storage(gradient)))
    memory.access(memory.putFloats(map.master(range), values, count))

    def step(progress: Progress): Unit = {
      memory.access(memory.getFloats(map.gradients + range.start * 4, gradient, count))
      var i = 0
      while (i < count) {
        gradient(i) /= gradients
        i += 1
      }
      clipping.foreach { case (least, most) => clip(least, most) }
      progress.writeTo(method)
      method.optimize(_ => (progress.loss, gradientTensor), parameters)
      memory.access(memory.putFloats(map.master(range), values, count))
    }

    def stretch: Stretch = Stretch(range.start.toInt, values)

    private def clip(least: Float, most: Float): Unit = {
      var i = 0
      while (i < count) {
        gradient(i) = math.min(most, math.max(least, gradient(i)))
        i += 1
      }
    }
  }

  private val stripes: IndexedSeq[Option[Stripe]] = map.layout.layers.indices.map { layer =>
    map.layout.stripe(layer, map.rank).map(new Stripe(_, method(layer).clone()))
  }

  /** Update the parameters of these layers. Their gradients must be summed. */
  def step(layers: Range, progress: Progress): Unit =
    layers.flatMap(stripes(_)).foreach(_.step(progress))

  def stretches: Seq[Stretch] = stripes.flatten.map(_.stretch)
}

/**
 * Progress of training, for optimization methods and triggers.
 *
 * @param epoch counted from 1
 * @param iteration counted from 1
 * @param loss of the iteration before
 * @param score of the last validation
 */
private[bigdl] final case class Progress(epoch: Int, iteration: Int, loss: Float, score: Float) {
  def writeTo(method: OptimMethod[Float]): Unit = {
    val state = SparkdlBigDL.state(method)
    state("epoch") = epoch
    state("neval") = iteration
    state("Loss") = loss
    state("score") = score
  }
}
