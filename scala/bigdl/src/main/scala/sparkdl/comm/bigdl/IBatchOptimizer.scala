// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import org.apache.spark.SparkContext
import org.apache.spark.rdd.RDD

import com.intel.analytics.bigdl.{Criterion, Module, SparkdlBigDL}
import com.intel.analytics.bigdl.dllib.feature.dataset.{
  DataSet,
  DistributedDataSet,
  MiniBatch,
  Sample,
  SampleToMiniBatch
}
import com.intel.analytics.bigdl.dllib.optim.Optimizer
import com.intel.analytics.bigdl.numeric.NumericFloat

/**
 * Optimizer that trains a BigDL model on all executors at once. It gives the same result as BigDL's
 * own `DistriOptimizer`, but uses the parameter server of this package. Each layer waits for its
 * own parameters just before it is used, and its gradients are sent during backward, in planned
 * buckets. The whole training is one Spark job of one barrier stage, and nothing passes through the
 * driver between iterations.
 *
 * It has the same methods as `DistriOptimizer`. Each executor updates only a shard of the
 * parameters, so optimization methods have to be elementwise. `spark.sparkdl.comm.ps.batching` and
 * related keys set how layers travel.
 *
 * @param network with float parameters
 * @param batches of as many partitions as there are executors
 */
class IBatchOptimizer(
    network: Module[Float],
    batches: DistributedDataSet[MiniBatch[Float]],
    loss: Criterion[Float]
) extends Optimizer[Float, MiniBatch[Float]](network, batches, loss) {
  import IBatchOptimizer._

  private var clipping = Option.empty[(Float, Float)]
  private var clipsByNorm = false
  private var summaryJson = "{}"
  private var lossHistory = Seq.empty[Float]
  private var ownConf = Map.empty[String, String]

  /**
   * Numbers of the last training, as JSON with the fields of a fit's summary that
   * [[Account.summary]] names.
   */
  def summary: String = summaryJson

  /** Mean loss of each iteration of the last training; after a restart, of the last attempt. */
  def losses: Seq[Float] = lossHistory

  /**
   * Set a key of this package, such as `spark.sparkdl.comm.ps.batching`, for this optimizer alone.
   */
  def setConf(key: String, value: String): this.type = {
    ownConf += key -> value
    this
  }

  override def setConstantGradientClipping(min: Double, max: Double): this.type = {
    clipping = Some((min.toFloat, max.toFloat))
    this
  }

  override def setGradientClippingByl2Norm(clipNorm: Double): this.type = {
    clipsByNorm = true
    this
  }

  override def disableGradientClipping(): this.type = {
    clipping = None
    clipsByNorm = false
    this
  }

  /**
   * Train the model, and return it with its new parameters.
   *
   * @throws UnsupportedTrainingException if the request is not supported: before training, if that
   *    can be known
   * @throws TrainingFailedException if a rank threw an exception, ranks were lost more often than
   *    spark.sparkdl.comm.maxRestarts allows, or executors were killed for their memory twice
   */
  override def optimize(): Module[Float] =
    try train()
    catch { case Refusal(why) => throw new UnsupportedTrainingException(why) }

  private def train(): Module[Float] = {
    val data = dataset.toDistributed()
    val sc = data.originRDD().sparkContext
    val conf = sc.getConf.setAll(ownConf)
    check(sc)
    if (!data.isCached) prepareInput()
    val job = new TrainingJob(sc, model, data, criterion, conf)
    checkpointPath = checkpointPath.map(Checkpoints.newFolder)
    val (result, summed) = job.run(
      optimMethods,
      clipping,
      endWhen,
      for (trigger <- validationTrigger; methods <- validationMethods)
        yield Validation(trigger, methods.toSeq),
      validationDataSet.map(_.toDistributed()),
      for (trigger <- checkpointTrigger; path <- checkpointPath)
        yield CheckpointRequest(trigger, path)
    )
    summaryJson = summed
    lossHistory = result.iterations.map(_.loss)
    optimMethods.foreach { case (name, method) =>
      SparkdlBigDL.state(result.methods(name)).foreach { case (key, value) =>
        SparkdlBigDL.state(method)(key) = value
      }
    }
    new SummaryWriter(trainSummary, validationSummary).write(result)
    model
  }

  override def prepareInput(): Unit = {
    dataset.toDistributed().cache()
    validationDataSet.foreach(_.toDistributed().cache())
  }

  private def check(sc: SparkContext): Unit = {
    def refuse(what: String): Nothing = throw new UnsupportedTrainingException(what)
    SparkdlBigDL.otherEngine.foreach(engine =>
      refuse(
        s"engine $engine keeps parameters in memory of its own: set the Java property bigdl.engineType=mklblas"
      )
    )
    if (dropPercentage > 0)
      refuse("setDropModuleProperty is not supported: the gradients of all ranks are used")
    if (clipsByNorm)
      refuse(
        "setGradientClippingByl2Norm is not supported: no executor has all gradients. Use" +
          " setConstantGradientClipping"
      )
    if (trainSummary.exists(_.getSummaryTrigger("Parameters").isDefined))
      refuse(
        "Parameters in the train summary are not supported: the driver does not have them during training"
      )
    if (sc.getConf.get("spark.plugins", "").split(",").map(_.trim).forall(_ != Plugin))
      refuse(s"spark.plugins does not name $Plugin: set it when the application starts")
    NetworkLayers.check(model)
    optimMethods.values.foreach(ElementwiseTrial.check)
    validationMethods.foreach(methods => ValidationSums.check(methods.toSeq))
  }
}

object IBatchOptimizer {
  private val Plugin = "sparkdl.comm.CommPlugin"

  /**
   * Make an optimizer of samples.
   *
   * @param batchSize rows in all executors, a multiple of executors times cores
   * @throws UnsupportedTrainingException if it is not such a multiple
   */
  def apply(
      model: Module[Float],
      rows: RDD[Sample[Float]],
      criterion: Criterion[Float],
      batchSize: Int
  ): IBatchOptimizer = {
    checkBatch("batchSize", batchSize)
    val batches = DataSet.rdd(rows) -> SampleToMiniBatch[Float](batchSize)
    new IBatchOptimizer(model, batches.toDistributed(), criterion)
  }

  /**
   * Check a batch size of the parameter `name`.
   *
   * @throws UnsupportedTrainingException if a batch of `size` rows cannot be cut into equal parts
   */
  private[bigdl] def checkBatch(name: String, size: Int): Unit = {
    val (executors, cores) = (SparkdlBigDL.nodes, SparkdlBigDL.cores)
    if (size <= 0 || size % (executors * cores) != 0)
      throw new UnsupportedTrainingException(
        s"$name=$size: must be a multiple of ${executors * cores}, the executors ($executors)" +
          s" times the cores ($cores) of BigDL's engine"
      )
  }
}
