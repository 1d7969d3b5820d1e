// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.lang.{Double => JDouble}
import java.util.{ArrayList, List => JList, Map => JMap}

import scala.jdk.CollectionConverters._

import org.apache.spark.api.java.JavaRDD
import org.apache.spark.sql.DataFrame

import com.intel.analytics.bigdl.{Criterion, Module}
import com.intel.analytics.bigdl.dllib.optim.{OptimMethod, Trigger}
import com.intel.analytics.bigdl.dllib.utils.python.api.{PythonBigDL, Sample}
import com.intel.analytics.bigdl.numeric.NumericFloat

/**
 * Entry points for Python: BigDL's Python API calls them to make an [[IBatchOptimizer]], as it
 * makes BigDL's own.
 */
final class PythonIBatch extends PythonBigDL[Float] {
  def createIBatchOptimizer(
      model: Module[Float],
      rows: JavaRDD[Sample],
      criterion: Criterion[Float],
      methods: JMap[String, OptimMethod[Float]],
      endWhen: Trigger,
      batchSize: Int
  ): IBatchOptimizer = {
    IBatchOptimizer.checkBatch("batch_size", batchSize)
    setUp(IBatchOptimizer(model, toJSample(rows.rdd), criterion, batchSize), methods, endWhen)
  }

  /** Make an optimizer for the rows of a DataFrame: see [[FrameRows]]. */
  def createIBatchOptimizerOfFrame(
      model: Module[Float],
      frame: DataFrame,
      features: String,
      label: String,
      size: JList[Int],
      criterion: Criterion[Float],
      methods: JMap[String, OptimMethod[Float]],
      endWhen: Trigger,
      batchSize: Int
  ): IBatchOptimizer = {
    val rows = FrameRows(frame, features, label, size.asScala.toArray)
    setUp(IBatchOptimizer(model, rows, criterion, batchSize), methods, endWhen)
  }

  /** Return [[IBatchOptimizer.losses]] as a list for BigDL's Python API. */
  def lossesOfIBatchOptimizer(optimizer: IBatchOptimizer): JList[JDouble] =
    new ArrayList(optimizer.losses.map(loss => Double.box(loss.toDouble)).asJava)

  /** Make a layer that only waits, for BigDL's Python API: see [[EmulatedLayer]]. */
  def createEmulatedLayer(
      index: Int,
      count: Int,
      forwardSeconds: Double,
      backwardSeconds: Double
  ): EmulatedLayer =
    new EmulatedLayer(index, count, forwardSeconds, backwardSeconds)

  private def setUp(
      optimizer: IBatchOptimizer,
      methods: JMap[String, OptimMethod[Float]],
      endWhen: Trigger
  ): IBatchOptimizer = {
    optimizer.setEndWhen(endWhen)
    optimizer.setOptimMethods(methods.asScala.toMap)
    optimizer
  }
}

object PythonIBatch {

  /** Make the object by the name that BigDL's Python API looks for. */
  def ofFloat(): PythonIBatch = new PythonIBatch
}
