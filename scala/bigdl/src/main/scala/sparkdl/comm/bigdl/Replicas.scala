// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import com.intel.analytics.bigdl.{Criterion, SparkdlBigDL}
import com.intel.analytics.bigdl.SparkdlBigDL.Network
import com.intel.analytics.bigdl.dllib.feature.dataset.MiniBatch
import com.intel.analytics.bigdl.dllib.nn.abstractnn.Activity
import com.intel.analytics.bigdl.dllib.optim.{ValidationMethod, ValidationResult}
import com.intel.analytics.bigdl.dllib.tensor.Tensor
import com.intel.analytics.bigdl.dllib.utils.DistriParameterSynchronizer

/** Network of a rank, with its criterion, its validation methods and its stopwatch. */
private[bigdl] final case class Replica(
    network: Network,
    criterion: Criterion[Float],
    methods: Seq[ValidationMethod[Float]],
    watch: Stopwatch
)

/**
 * Networks of one rank. Each computes its part of a batch, on its own thread. They share the
 * parameters, and each has its own gradients.
 *
 * @param all at least one; their parameters lie in flat vectors that nobody else uses
 */
private[bigdl] final class Replicas(all: IndexedSeq[Replica]) {
  private val first = all.head.network
  private val flat = all.map(replica => SparkdlBigDL.flatten(replica.network))

  /** Flat vector of the parameters. */
  val weights: Array[Float] = Replicas.array(flat.head._1)
  val layers: NetworkLayers = NetworkLayers(first, weights.length)
  all.tail.foreach(replica => share(replica.network))

  /** Flat vector of each replica's gradients. */
  val gradients: IndexedSeq[Array[Float]] = flat.map { case (_, gradients) =>
    Replicas.array(gradients)
  }

  private val leavesOfEach = all.map(replica => SparkdlBigDL.leaves(replica.network))

  def size: Int = all.size
  def watches: IndexedSeq[Stopwatch] = all.map(_.watch)

  /** State of the first network other than parameters, such as the means of batch normalization. */
  def extras: Array[Tensor[Float]] = first.getExtraParameter()

  /**
   * Make the layers of each replica ask `by` for their parameters, and report complete gradients to
   * it.
   */
  def gate(by: Int => DistriParameterSynchronizer[Float]): Unit =
    all.indices.foreach(number => leavesOfEach(number).foreach(SparkdlBigDL.gate(_, by(number))))

  /**
   * Run forward and backward of a batch, cut over the replicas.
   *
   * @param onForwardEnded called with each replica's number and loss as soon as the loss is known,
   *    on the replica's thread
   * @throws UnsupportedTrainingException if the batch cannot be cut into equal parts
   */
  def train(batch: MiniBatch[Float])(onForwardEnded: (Int, Double) => Unit): Unit = {
    val rows = batch.size()
    if (rows < size || rows % size != 0)
      throw new UnsupportedTrainingException(
        s"a batch of $rows rows in each executor cannot be cut into $size equal parts, one for" +
          " each core: set a batch size that is a multiple of executors times cores"
      )
    onEach { number =>
      val Replica(network, criterion, _, watch) = all(number)
      val part = if (size == 1) batch else batch.slice(number * (rows / size) + 1, rows / size)
      network.training()
      val (output, loss) = watch.time(Phase.Forward) {
        val output = network.forward(part.getInput())
        (output, criterion.forward(output, part.getTarget()).toDouble)
      }
      onForwardEnded(number, loss)
      watch.time(Phase.Backward)(network.backward(
        part.getInput(),
        criterion.backward(output, part.getTarget())
      ))
    }
  }

  /** Return the results of each validation method on all of `batches`; None if there are none. */
  def evaluate(batches: Iterator[MiniBatch[Float]]): Option[Seq[ValidationResult]] = {
    all.foreach(_.network.evaluate())
    batches.map(evaluate).reduceOption(Replicas.add)
  }

  private def evaluate(batch: MiniBatch[Float]): Seq[ValidationResult] = {
    val (least, more) = (batch.size() / size, batch.size() % size)
    val found = new Array[Seq[ValidationResult]](size)
    onEach { number =>
      val rows = least + (if (number < more) 1 else 0)
      if (rows > 0) {
        val part = batch.slice(number * least + math.min(number, more) + 1, rows)
        val output: Activity = all(number).network.forward(part.getInput())
        found(number) = all(number).methods.map(method => method(output, part.getTarget()))
      }
    }
    found.filter(_ != null).reduce(Replicas.add(_, _))
  }

  private def onEach(work: Int => Unit): Unit =
    if (size == 1) work(0) else SparkdlBigDL.runAll(all.indices.map(number => () => work(number)))

  private def share(other: Network): Unit =
    other.parameters()._1.zip(first.parameters()._1).foreach { case (tensor, shared) =>
      tensor.set(shared)
    }
}

private object Replicas {
  private def add(some: Seq[ValidationResult], more: Seq[ValidationResult]): Seq[ValidationResult] =
    some.zip(more).map { case (left, right) => left + right }

  /** Return the array of a tensor. The tensor must be all of its storage. */
  private def array(tensor: Tensor[Float]): Array[Float] = {
    val array = tensor.storage().array()
    require(
      tensor.storageOffset() == 1 && array.length == tensor.nElement(),
      s"${tensor.nElement()} parameters begin at element ${tensor.storageOffset()} of" +
        s" ${array.length}: they must be all"
    )
    array
  }
}
