// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.io.IOException
import java.time.LocalDateTime
import java.time.format.DateTimeFormatter

import org.apache.hadoop.fs.Path

import com.intel.analytics.bigdl.SparkdlBigDL
import com.intel.analytics.bigdl.SparkdlBigDL.Network
import com.intel.analytics.bigdl.dllib.optim.OptimMethod
import com.intel.analytics.bigdl.dllib.utils.File

/**
 * Checkpoints in the files that BigDL's own optimizers write: `model.N`, and `optimMethod-NAME.N`
 * for each method. The methods are saved without values for each parameter, such as momentum. N is
 * the number of the next iteration.
 *
 * A file gets its name once it is complete. So an executor that is killed while it writes leaves no
 * unreadable file.
 *
 * @param folder of one training, which the driver and the executors can all reach
 */
private[bigdl] final class Checkpoints(folder: String) {
  def save(network: Network, methods: Map[String, OptimMethod[Float]], next: Int): Unit = {
    val drafts = s"$folder/_drafts"
    val names = SparkdlBigDL.save(network, methods, drafts, next)
    val files = SparkdlBigDL.fileSystem(folder)
    names.foreach { name =>
      val (from, to) = (new Path(drafts, name), new Path(folder, name))
      files.delete(to, false) // an earlier attempt may have written it
      if (!files.rename(from, to)) throw new IOException(s"$from cannot be renamed to $to")
    }
    files.delete(new Path(drafts), true)
  }

  /** Load the last complete checkpoint; return None if there is none. */
  def latest(methods: Set[String]): Option[(Network, Map[String, OptimMethod[Float]])] = {
    val path = new Path(folder)
    val files = SparkdlBigDL.fileSystem(folder)
    val names = if (files.exists(path)) files.listStatus(path).map(_.getPath.getName).toSet
    else Set.empty[String]
    val numbers = names.collect { case Checkpoints.Model(number) => number.toInt }
    val complete =
      numbers.filter(number => methods.forall(name => names.contains(s"optimMethod-$name.$number")))
    complete.reduceOption(_ max _).map { number =>
      val loaded = methods.map(name =>
        name -> File.load[OptimMethod[Float]](s"$folder/optimMethod-$name.$number")
      )
      (File.load[Network](s"$folder/model.$number"), loaded.toMap)
    }
  }
}

private[bigdl] object Checkpoints {

  /** Return a folder for one training, named by the time, as BigDL's optimizers do. */
  def newFolder(parent: String): String =
    s"$parent/${DateTimeFormatter.ofPattern("yyyyMMdd_HHmmss").format(LocalDateTime.now())}"

  private val Model = """model\.(\d+)""".r
}
